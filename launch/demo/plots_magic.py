"""Plots about wishes, the sky, strange sounds and long errands.

See stories.py for the language they are written in.
"""

from plots import plot

# A wish.
plot("""
{open} {likes}

{oneday} {who} found {magic} {where}. {H} picked it up and (rubbed it|looked at it closely).
Suddenly there was a (bright|soft) light, and a voice said, "You may make one wish." {H} could not
believe it. "{ask}," {he} said. "I wish {wish}!"

Puff! {granted}. At first {H} {glad}. But then {bad}. {H} {sad}. "This is not what I wanted," {he}
said. {He} ran back to {magic_the} and said, "Please, {undo}."

The voice laughed, but it was a kind laugh. "I see that you have learned something," it said.
Puff! {back}. {H} ran home and {end_act}. {moral} {end}
""", magic=[
    ("magic", "magic_the"),
    ("a shiny stone", "the stone"),
    ("an old lamp", "the lamp"),
    ("a golden ring", "the ring"),
    ("a silver bell", "the bell"),
    ("a blue bottle", "the bottle"),
], where=[
    ("where",), ("in the sand",), ("under a tree",), ("by the river",), ("in the old well",),
    ("in the tall grass",),
], wish=[
    ("ask", "wish", "granted", "bad", "undo", "back", "end_act", "lesson"),
    ("I want to be big", "to be as tall as a tree",
     "{H} grew and grew until {his} head was in the clouds",
     "{he} could not get through the door, and all {his} friends ran away", "make me small again",
     "{H} was as small as before", "hugged {his} {parent} for a long time",
     "it is good to be just as you are"),
    ("I love sweet things", "that everything was made of cake",
     "The trees were cake, and the houses were cake",
     "{he} could not find a drop of water, and even {his} bed was sticky",
     "make everything as it was", "The trees were trees again", "drank three cups of water",
     "too much of a good thing is not good"),
    ("I do not like to sleep", "that it was always day",
     "The sun stopped in the middle of the sky",
     "the birds were tired, the flowers were thirsty, and there were no stars",
     "give us back the night", "The sun went down, and the stars came out",
     "slept better than ever before", "every time of the day is good for something"),
    ("Everyone tells me what to do", "to be all alone", "All the others were gone",
     "it was so quiet, and there was no one to play with", "bring them all back",
     "Everyone was there again", "played with all {his} friends until it was dark",
     "it is good to have others around us"),
    ("I want to be rich", "that everything I touch turns to gold",
     "{H} touched a flower, and it was gold",
     "{his} bread was gold, and {his} soft bed was hard and cold", "take the gold away",
     "The flower was soft and red again", "ate a big piece of warm bread",
     "gold can not make you happy"),
    ("I want to fly", "to be a bird", "{H} had feathers and two wings and flew up into the sky",
     "a big hawk came after {him}, and {his} {parent} did not know who {he} was",
     "make me {H} again", "{H} stood on two feet", "told {his} {parent} all about the sky",
     "it is good to be just as you are"),
])

# A strange sound at night.
plot("""
{open} {likes}

One night, {who} woke up. There was a strange sound. "{sound}!" {H} sat up and listened.
"{sound}!" There it was again. "(Is it a monster?|Is it a ghost?)" thought {H}. {He} {brave} and
went to look.

The sound did not come from the kitchen. It did not come from the stairs. It came from {from}! {H}
walked on the tips of {his} toes, slowly, slowly. {His} heart went bump, bump, bump. {He} counted
to three and {open_it}.

And who was there? It was {culprit}! {explain}. {H} began to laugh. "So you are my monster!" {he}
said. {He} {help}. {after}. {finish}
""", sound=[
    ("sound", "from", "open_it", "culprit", "explain", "help", "after"),
    ("Scratch, scratch", "the door", "opened the door", "a little wet kitten",
     "It had lost its way in the rain and wanted to come in",
     "dried it with a towel and gave it milk", "Soon the kitten was asleep on {his} pillow"),
    ("Crunch, crunch", "under the table", "looked under the table",
     "a small mouse with a big cracker", "It was so hungry that it could not eat quietly",
     "gave it a piece of cheese", "The mouse took it and ran home to its babies"),
    ("Hoo, hoo", "the roof", "looked out of the window", "a baby owl",
     "It was calling for its mother", "waited with it until its mother came back",
     "The mother owl said thank you in her own way: hoo, hoo"),
    ("Knock, knock", "the window", "pulled the curtain away", "a branch with a bird on it",
     "The bird was cold and knocked with its beak",
     "put a warm cloth and some seeds by the window",
     "In the morning the bird sang the nicest song"),
    ("Squeak, squeak", "the garden", "opened the gate", "a hedgehog in an old tin can",
     "Its nose was stuck in the can", "pulled the can off very gently",
     "The hedgehog sneezed and walked away under the bush"),
    ("Drip, drop", "the bath", "turned on the light", "a frog under the water tap",
     "It liked the cool drops on its back", "carried it out to the pond",
     "All night it sang for {him} from far away"),
], brave=[
    ("brave",), ("took a deep breath",), ("took {his} lamp",), ("put on {his} shoes",),
], wise=[
    ("lesson",), ("it is good to look before we are afraid",),
    ("most monsters are only someone who needs help",), ("strange sounds have small makers",),
])

# A chain of trades.
plot("""
{open} {likes}

{oneday} {who} wanted {goal}. {He} went to the {a}. "(May|Can) I have {goal}, please?" asked {H}.
"Yes," said the {a}, "if you bring me {x}." So {H} went to the {b}. "May I have {x}, please?"
asked {H}. "Yes," said the {b}, "if you bring me {y}." So {H} went to the {c}. "May I have {y},
please?" asked {H}. The {c} looked {sadly}. "I am so {tired}," said the {c}. "If you {favor}, you
can have {y}."

"I can do that," said {H}. {He} {did}, and the {c} {glad_c}. Then {H} brought {the_y} to the {b},
and the {b} gave {him} {x}. {He} brought {the_x} to the {a}, and the {a} gave {him} {goal}.

{H} {glad}. "What a long way for {goal}!" said {his} {parent}. "Yes," said {H}, "but now {conc}."
{moral} {end}
""", chain=[
    ("goal", "a", "x", "b", "y", "c"),
    ("an apple", "farmer", "an egg", "hen", "some corn", "miller"),
    ("some milk", "cow", "fresh grass", "meadow man", "a sharp knife", "smith"),
    ("a warm loaf of bread", "baker", "some wood", "woodman", "a new rope", "sailor"),
    ("a red button", "tailor", "some wool", "sheep", "a bucket of water", "well keeper"),
    ("a big fish", "fisherman", "a new net", "weaver", "some string", "old woman"),
    ("a jar of honey", "beekeeper", "some flowers", "gardener", "a new broom", "broom maker"),
], favor=[
    ("sadly", "tired", "favor", "did", "glad_c"),
    ("sad", "lonely", "sing me a song", "sang {his} very best song",
     "smiled for the first time that day"),
    ("tired", "tired", "sweep my floor", "swept the floor until it was clean",
     "sat down with a happy sigh"),
    ("worried", "busy", "carry this bag up the hill", "carried the bag all the way up the hill",
     "shook {his} hand"),
    ("up", "bored", "tell me a joke", "told a joke about a hen with a hat",
     "laughed and laughed"),
    ("sad", "hungry", "share your lunch with me", "gave away half of {his} lunch",
     "ate it with joy"),
], wise=[
    ("conc", "lesson"),
    ("I have three new friends", "those who help others get help too"),
    ("everyone has what they need", "a little help goes a long way"),
    ("I know that nothing comes from nothing", "it takes many hands to get one thing"),
])

# A snowman melts.
plot("""
{open} {likes}

One winter (day|morning), {who} looked out of the window. Everything was white! {H} put on {his}
(warm coat|red hat|warm boots) and ran outside. {Fi} was there too. "Let us make a {snow}!" said
{H}. They rolled and pushed the snow all day. They gave it {eyes} for eyes and {nose} for a nose.
"{name} is your name," said {H}.

Every day they played with {name}. But one morning the sun was warm, and {name} was smaller than
before. "Oh no, {name} is going away!" cried {H}. The next day there was only {left} on the wet
grass. {H} {sad}.

"(Where did {name} go?|Will {name} ever come back?)" asked {H}. {His} {parent} {told}. "{name} is
water now. {goes}. And when it is cold again, {name} will come back." So {H} kept a place {keep}.
And in the next winter, when the first snow fell, {H} and {F} ran outside. "Hello, {name}!" they
said. "We knew that you would come back." {finish}
""", snow=[
    ("snow", "name"),
    ("snowman", "Mister White"),
    ("snow bear", "Big Paw"),
    ("snow cat", "Snowy"),
    ("snow rabbit", "Long Ear"),
    ("snowman", "Old Frost"),
    ("snow dog", "Icy"),
], face=[
    ("eyes", "nose", "left", "keep"),
    ("two black stones", "a carrot", "a carrot", "in the garden free"),
    ("two buttons", "a red apple", "an old apple", "by the door free"),
    ("two nuts", "a small potato", "a potato", "under the tree free"),
], told=[
    ("told", "goes"),
    ("took {his} hand", "It goes into the ground and helps the flowers grow"),
    ("smiled", "It goes up into the sky and makes the clouds"),
    ("sat down next to {him}", "It runs down to the river and sees the world"),
], wise=[
    ("lesson",), ("some friends go away and come back",), ("goodbye is not for ever",),
    ("every season has its own joy",),
])

# Found, and given back.
plot("""
{open} {likes}

{oneday} {who} found {found} {where}. "(How lucky I am!|What a lucky day!)" said {H}. "Now I can
{use}." {He} took it home and showed it to {his} {parent}. "It is very nice," said {his} {parent}.
"But who does it belong to?" "To me! I found it," said {H}.

The next day, {H} saw {owner}. {Owner_he} was looking at the ground, here and there, and
{owner_he} looked very sad. "What are you looking for?" asked {H}. "I lost {lost}," {owner_he}
said. "{story}." {H} felt hot and cold. {He} wanted to keep it. But {he} looked at the sad face
and knew what {he} had to do.

{H} ran home and came back with it. "Here it is," {he} said. "I found it, but it is yours."
{Owner_he} {ojoy}. "Thank you, {H}! You have a good heart." And {thank}. {H} {glad}. It felt much
better than {use_ing}. {finish}
""", found=[
    ("found", "lost", "use", "use_ing", "story"),
    ("a purse with ten coins", "my purse", "buy a big toy", "a big toy",
     "I need it to buy bread"),
    ("a little gold ring", "my ring", "be like a king", "gold",
     "My husband gave it to me many years ago"),
    ("a soft toy rabbit", "a toy rabbit", "sleep with it", "any toy",
     "It is for my little grandchild, who can not sleep without it"),
    ("a brown hat with a feather", "my hat", "look like a hunter", "a hat",
     "I made it when I was young"),
    ("a small silver flute", "my flute", "make music", "a flute",
     "I play it at the market every day"),
], where=[
    ("where",), ("on the path",), ("under a bench",), ("in the grass",), ("near the well",),
], owner=[
    ("owner", "owner_he", "ojoy"),
    ("an old woman", "she", "was so happy that she cried"),
    ("an old lady with a stick", "she", "took both {his} {hands} and laughed"),
    ("a young woman with a basket", "she", "smiled like the sun"),
], thank=[
    ("thank",), ("she gave {him} a sweet red apple",), ("she told {him} a wonderful story",),
    ("she taught {him} a new song",), ("she baked {him} a little cake",),
], wise=[
    ("lesson",), ("it feels good to do what is right",),
    ("a good heart is worth more than gold",), ("what we find may be dear to someone else",),
])

# The moon, a star or a cloud needs help.
plot("""
{open} {likes}

One (night|evening), {who} looked up at the sky. But {something}. "That is strange," said {H}.
{He} went out and walked {where}. There, {in_where}, sat a {small} {thing}. It was {crying}. "Why
are you here?" asked {H}. "{reason}," said the {thing}. "And now I do not know how to get back
up."

{H} wanted to help. {He} tried to {try1}, but {he} could not reach the sky. Then {he} asked {Fx}.
"{advice}," said {F}. So {H} and {F} {climb}. {H} lifted the {thing} as high as {he} could.
"{wind}!" {he} called. And up, up, up went the {thing}, until it was back in its place.

{shine}. "Thank you, {H}!" called the {thing} from far above. Since then, every night,
{thanks_sky}. {finish}
""", sky=[
    ("thing", "something", "reason", "crying", "wind", "shine", "thanks_sky"),
    ("star", "one star was not in its place", "I wanted to see the flowers, and I fell",
     "crying tiny golden tears", "Shine, little star", "It was the brightest star of all",
     "the star shines right over {H}'s {home}"),
    ("moon", "there was no moon at all", "I was tired and wanted to rest on the soft grass",
     "round and white and very sad", "Roll, good moon", "The whole world was silver again",
     "the moon looks in and says good night to {H}"),
    ("cloud", "there was a hole between the clouds",
     "I came down to drink, and now I am too heavy", "gray and full of tears",
     "Fly, little cloud", "It danced over the hills",
     "the cloud makes a funny shape just for {H}"),
], where=[
    ("where", "in_where"),
    ("to the meadow", "in the high grass"),
    ("down to the lake", "between the reeds"),
    ("up the hill", "behind a rock"),
    ("into the woods", "on an old log"),
], up=[
    ("try1", "advice", "climb"),
    ("jump", "We need a high place", "climbed the highest hill of all"),
    ("throw it up", "It needs a tall tree", "climbed to the top of the tallest tree"),
    ("stand on a stone", "We can stand on top of each other",
     "stood on top of each other on a big rock"),
], small=[
    ("small",), ("small",), ("little",), ("tired",),
], wise=[
    ("lesson",), ("even the sky needs a friend sometimes",),
    ("no one is too small to do something great",), ("it is good to help those who are lost",),
])
