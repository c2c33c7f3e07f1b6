/* kvclass.h - the classes of KV blocks.
 *
 * A class is a pool of blocks of its own, with block tables of its own. Global: every position of a
 * session, for the layers that attend to all of them (LAYER_GLOBAL), and the measure of its tokens
 * where a model has no such layer. Window: the last positions only, for LAYER_WINDOW; blocks that
 * have slid out of a session's window are released and handed out again. State and draft have no
 * blocks yet. */
#ifndef COMMON_KVCLASS_H
#define COMMON_KVCLASS_H

#define KV_BLOCK 64u /* positions in one KV block, of every class */

typedef enum {
    KV_CLASS_GLOBAL,
    KV_CLASS_WINDOW,
    KV_CLASS_STATE,
    KV_CLASS_DRAFT,
    KV_CLASS_COUNT
} kv_class;

#define KV_POOLS 2u /* classes with blocks of positions: those before KV_CLASS_STATE */

#endif
