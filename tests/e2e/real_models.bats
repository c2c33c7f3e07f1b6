#!/usr/bin/env bats
# The models that launch/get-model.sh fetches, each skipped by name when it is not in the cache: a
# question in the chat format is answered sensibly, and with the same bits at N = 1, 2 and 4.
load ../support/common
load ../support/faults

setup() {
    memra_setup
}

teardown() {
    memra_teardown
}

require_model() {
    MODEL=$("$MEMRA_ROOT/launch/get-model.sh" "$1" --path 2>/dev/null) ||
        skip "$1 is not in the cache; launch/get-model.sh $1 fetches it"
}

# The text for a prompt at 1, 2 and 4 stages is one text, which goes to TEXT.
same_text() {
    local n
    for n in 1 2 4; do
        CODE=0
        timeout 300 "$PP" run -m "$MODEL" --special --temp 0 --stages "$n" --ctx 512 \
            --log-level warn "$@" >"$TEST_DIR/text.$n" 2>"$TEST_DIR/err" || CODE=$?
        [[ $CODE == 0 && ! -s $TEST_DIR/err ]]
        cmp "$TEST_DIR/text.1" "$TEST_DIR/text.$n"
    done
    TEXT=$(<"$TEST_DIR/text.1")
    printf '%s\n' "$TEXT"
    assert_nothing_left
}

# The raw logits of the prompt too: the text could be the same by chance.
same_logits() {
    local n ids
    ids=$("$PP" tokenize -m "$MODEL" -p "$1")
    for n in 1 2 4; do
        "$PP" logits -m "$MODEL" --tokens "$ids" --stages "$n" --ctx 512 --chunk $((8 * n)) \
            -o "$TEST_DIR/logits.$n" --log-level warn
        cmp "$TEST_DIR/logits.1" "$TEST_DIR/logits.$n"
    done
}

@test "smollm2 answers a question in its chat format" {
    require_model smollm2
    local ask=$'<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n'
    same_text -p "$ask" -n 40
    [[ ${TEXT#"$ask"} == *Paris* ]]
    same_logits "$ask"
}

@test "smollm2 keeps a conversation" {
    require_model smollm2
    local hello='<|im_start|>user\
My name is Ada. What is the capital of Italy?<|im_end|>\
<|im_start|>assistant\
'
    printf '%s\n' "$hello" >"$TEST_DIR/in"
    timeout 300 "$PP" run -i -m "$MODEL" --special --temp 0 --stages 2 --ctx 512 -n 40 \
        <"$TEST_DIR/in" >"$TEST_DIR/out" 2>"$TEST_DIR/err"
    grep -q Rome "$TEST_DIR/out"
}

# This one is pretrained only, not tuned to answer: an answered question shows it what a turn is.
@test "gemma3-270m answers a question in its chat format" {
    require_model gemma3-270m
    local ask
    ask=$(printf '<start_of_turn>%s<end_of_turn>\n' $'user\nWhat is the capital of Italy?' \
        $'model\nThe capital of Italy is Rome.' $'user\nWhat is the capital of France?')
    ask+=$'\n<start_of_turn>model\n'
    same_text -p "$ask" -n 12
    [[ ${TEXT#"$ask"} == "The capital of France is Paris."* ]]
    same_logits "$ask"
}

@test "gemma3-270m continues a text" {
    require_model gemma3-270m
    same_text -p $'Question: What is the capital of France?\nAnswer:' -n 8
    [[ $TEXT == *"Answer: Paris"* ]]
}
