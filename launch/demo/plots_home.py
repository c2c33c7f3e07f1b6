"""Plots about things lost, made, broken, feared and shared.

See stories.py for the language they are written in.
"""

from plots import plot

# A lost favourite thing, and the friend who asks the right question.
plot("""
{open} {H} had a {thing}. It was {his} favorite thing in the whole world, and {he} took it
everywhere.

{oneday} {H} wanted to play with the {thing}, but it was gone! {He} looked (in {his} bed|under the
table|behind the door), but it was not there. {He} looked (in the big box|in the kitchen|by the
window), but it was not there either. {H} {sad}.

{Fi} came (by|to visit|to play). {notice} "I can not find my {thing}," said {H}. "(Do not worry|Do
not be sad), I will help you," said {F}. "(Where did you have it last?|When did you see it last?)"
{H} thought and thought. "I {last}," {he} said. So they went to look there.

And there it was! The {thing} was {found}. {why}. {H} {glad}. {thanks} (They played with the
{thing} until it was time to go home.|Then they played with it all day.) {finish}
""", look=[
    ("thing", "last", "found", "why", "lesson"),
    ("red ball", "kicked it in the garden", "under a big bush",
     "It had rolled there all by itself", "it is easier to look for things together"),
    ("blue kite", "was flying it on the hill", "high up in a tree",
     "The wind had carried it there", "good friends help each other"),
    ("little boat", "was playing by the pond", "between the tall reeds",
     "The water had pushed it there", "it is good to ask for help"),
    ("warm scarf", "hung it on the fence", "in a nest full of baby birds",
     "Their mother had used a part of it to keep them warm",
     "sometimes others need a thing more than we do"),
    ("shiny drum", "left it under the old tree", "behind the tree, full of nuts",
     "A squirrel had used it as a bowl", "it is good to put your things away"),
    ("soft blanket", "sat on it in the grass", "under a sleeping cat",
     "The cat liked it because it was so soft", "nice things are even nicer when we share them"),
    ("green hat", "wore it on the bridge", "on a rock in the river",
     "The wind had blown it off the bridge", "it is easier to look for things together"),
    ("toy car", "was digging in the sand", "deep down in the sand",
     "Someone had dug a hole and covered it", "it is good to put your things away"),
    ("teddy bear", "had a picnic in the garden", "sitting under the picnic table",
     "It looked as if it was waiting for more cake", "good friends help each other"),
])

# Afraid of something, until someone shows what it really is.
plot("""
({open} {H} was (brave|happy) most of the time, but there was one thing {he} did not like. {He}
was afraid of {fear}.|{open} {H} was afraid of {fear}.|{H} was a {size} {kid}. {H} was afraid of
{fear}.|{H} was afraid of {fear}.)

{when} {H} {hid}. {His} {parent} came and sat down next to {him}. "Why are you (hiding|so scared),
{H}?" asked {his} {parent}. "I am afraid of {fear}," said {H} in a small voice. {His} {parent} did
not laugh. "{words}," said {his} {parent}. "Come, I will show you."

{show}. At first {H} held {his} {parent} very tight. Then {he} looked, and then {he} (began to
smile|smiled a little). {nice}. "It is not so bad," said {H}. "(I was scared for nothing!|I am not
afraid any more!)"

The next time, {H} did not hide. {brave}. {His} {parent} was very proud. {finish}
""", fear=[
    ("fear", "when", "hid", "words", "show", "nice", "brave", "lesson"),
    ("the dark", "One night, the light went out.", "pulled the blanket over {his} head",
     "The dark is only the day with its eyes closed",
     "They went to the window and looked at the sky together",
     "The stars were shining like tiny lamps",
     "{He} looked out of the window and counted the stars", "the dark has its own little lights"),
    ("thunder", "One evening, there was a big storm. Boom! Boom!", "hid under the bed",
     "Thunder is only the clouds playing the drums",
     "They sat by the window and counted after each flash of light",
     "It was like a song with big drums",
     "{He} took a pot and a spoon and played the drums with the clouds",
     "loud things are not always bad things"),
    ("the water", "One hot day, everyone went to the lake.", "stayed on the sand",
     "The water will carry you if you are calm",
     "They walked into the lake, step by step, hand in hand", "The water was cool and it tickled",
     "{He} jumped in with a big splash", "we can do hard things step by step"),
    ("the big dog next door", "One morning, the dog came to the gate.", "ran behind the house",
     "That dog is big, but he is gentle", "They went to the gate and gave the dog a bone",
     "The dog wagged his tail and licked their hands",
     "{He} threw a stick and played with the dog",
     "someone who looks scary can be a good friend"),
    ("the high slide", "One day, all the others went to the slide.", "stood far away",
     "It is only a little hill with a fast way down",
     "They climbed up together and sat down at the top",
     "From up there they could see the whole world",
     "{He} went down the slide all alone and shouted with joy",
     "being brave means to try even if we are scared"),
    ("strange noises", "One night, there was a noise at the window. Tap, tap, tap!",
     "hid behind the chair", "Every noise has someone who makes it",
     "They opened the window very slowly", "It was only a branch that was waving in the wind",
     "{He} waved back at the branch and went to sleep",
     "it is good to look before we are afraid"),
    ("snow", "One winter day, everything was white and cold.", "stayed in bed",
     "Snow is only rain that wears a white coat",
     "They went outside and caught the snow on their tongues",
     "It was soft and it made no sound at all", "{He} ran out first and made a big snowman",
     "new things can be fun"),
])

# Not wanting to share.
plot("""
{open} {likes}

{oneday} {who} got {thing} from {his} {parent}. "(This is mine|It is all mine)," said {H}. "I will
not share it with anyone." {Fi} came and saw {it}. "(Oh, how nice!|That looks like fun!|Wow!) Can
I {use} too?" asked {F}. "No!" said {H}. "(Go away|It is only for me)." {F} {fsad} and went home.

{H} began to {use} alone. But {alone}. {H} thought about {F}. "(I was not kind|I made my friend
sad)," {H} said to {himself}. So {he} (ran|went) to the house of {F} and knocked on the door. "I
am sorry," said {H}. "Please come and {use} with me."

{F} smiled. "I would love to!" Soon they began to {use} together. {together}. "(It is much better
with you|This is the best day ever)," said {H}. {friends} {finish}
""", share=[
    ("thing", "it", "use", "alone", "together", "lesson"),
    ("a big cake", "it", "eat cake", "there was too much cake, and soon {his} tummy hurt",
     "The cake tasted much better now, and there was enough for two",
     "sharing makes good things even better"),
    ("a new swing", "it", "swing", "there was no one to push {him}",
     "They took turns, and they pushed each other higher and higher",
     "it is more fun to take turns"),
    ("a box of paints", "them", "paint", "{he} did not know what to paint",
     "{F} painted a blue sky and {H} painted a yellow sun", "two have more ideas than one"),
    ("a big ball", "it", "play ball", "there was no one to throw it back",
     "They threw the ball and caught it a hundred times", "a game needs a friend"),
    ("a wooden train", "it", "play with the train", "the train only went round and round",
     "{F} built a bridge and {H} drove the train over it", "two have more ideas than one"),
    ("a big bowl of berries", "them", "eat berries", "the berries did not taste so sweet",
     "They laughed because their mouths turned blue", "sharing makes good things even better"),
    ("a little tent", "it", "play in the tent", "it was quiet and a bit scary inside",
     "They told stories and laughed in the tent", "it is good to have a friend near"),
    ("a book with many pictures", "it", "read",
     "there was no one to laugh with about the funny pictures",
     "They looked at every picture and laughed and laughed", "a story is nicer when we share it"),
])

# Making something; something goes wrong; a neighbour helps.
plot("""
{open} {likes}

{oneday} {who} had an idea. "I will make {thing}!" {he} said. {He} (took|found|got) {parts} and
began to work. {He} worked and worked. But then {mishap}. "Oh no!" cried {H}. "Now I can not
{use}."

{Fi} heard {him}. {notice} "{trouble}," said {H}. {F} thought for a moment. "I know what to do,"
said {F}. "{fix}." {H} wiped {his} tears. "(What a good idea!" said|Do you think it will work?"
asked) {H}.

They worked together (until the sun was low|all afternoon|side by side). Then {done}. It was the
(best|most beautiful) {what} that they had ever seen. {H} {glad}. {enjoy}. {finish}
""", make=[
    ("thing", "parts", "mishap", "use", "trouble", "fix", "done", "what", "enjoy", "lesson"),
    ("a cake", "flour and milk and sugar", "{he} saw that there were no eggs", "bake a cake",
     "I have no eggs for my cake", "My hens have eggs. I will give you three",
     "the cake came out of the oven, warm and sweet", "cake",
     "They ate it together and left a piece for everyone in the house",
     "good things are made together"),
    ("a kite", "some paper and two sticks", "one of the sticks broke", "fly my kite",
     "My stick broke", "We can use a straw, it is light and strong",
     "the kite was ready, and it flew up into the sky", "kite",
     "They took turns to hold the string", "broken things can be mended"),
    ("a little boat", "some wood and a nail", "water came in and the boat sank",
     "sail on the pond", "My boat has a hole", "We can close the hole with wax from a candle",
     "the boat was on the water, and it did not sink", "boat",
     "They sailed around the pond and waved to the ducks", "it is good to try again"),
    ("a tree house", "some boards and a rope", "the ladder was too short", "get up into the tree",
     "My ladder is too short", "We can make steps out of the rope",
     "they sat in the tree house, high above the grass", "tree house",
     "They ate apples and looked at the birds", "two heads are better than one"),
    ("a castle out of sand", "a bucket and a shovel", "a wave came and washed it away",
     "finish my castle", "The sea took my castle",
     "We must build it higher up, where the sand is dry",
     "the castle had four towers and a wall of shells", "castle",
     "The waves came, but the castle stood", "we can learn from what went wrong"),
    ("soup", "a pot and some water", "the soup had no taste at all", "have a good dinner",
     "My soup tastes like water", "I have carrots and salt at home. I will bring them",
     "the soup was hot and smelled very good", "soup",
     "They ate two bowls each, and then they were full", "good things are made together"),
    ("a house for birds", "some wood and a hammer", "the roof fell off again and again",
     "help the birds", "The roof will not stay on", "We can tie it on with a string",
     "the little house hung in the tree", "bird house",
     "In spring a bird moved in and sang for them every morning",
     "two heads are better than one"),
    ("a big drum", "an old pot and some paper", "the paper had a hole in it", "make music",
     "My drum is broken", "We can use a piece of cloth, it will not tear",
     "the drum went boom, boom, boom", "drum", "They marched around the house and made music",
     "broken things can be mended"),
])

# A warning that was not heard.
plot("""
{open} {He} was {trait}, but {he} did not always listen.

{oneday} {his} {parent} said, "(Remember, {H}|Listen, {H}|{H}, be careful): {warn}." "Yes, yes,"
said {H}. But when {his} {parent} was (not looking|gone), {H} thought, "{think}." So {he} {act}.

(At first it was fun.|It was fun, but not for long.) Then {bad}. "Help! Help!" cried {H}. {His}
{parent} heard {him} and came (running|at once). {rescue}. "(Are you all right?|Are you hurt?)"
asked {his} {parent}. {H} shook {his} head and (began to cry|looked down). "I am sorry," {he}
said. "I did not listen to you."

{His} {parent} gave {him} a (warm|big) hug. "I am (glad|happy) that you are safe," said {his}
{parent}. "{after}." {moral} {end}
""", warn=[
    ("warn", "think", "act", "bad", "rescue", "after", "lesson"),
    ("do not go on the ice, it is too thin", "It looks strong to me", "stepped on the ice",
     "there was a loud crack, and {his} foot went into the cold water",
     "{His} {parent} held out a long branch and pulled {him} out",
     "In winter we will go when the ice is thick", "a warning is there to keep us safe"),
    ("do not climb up the old tree", "I am a good climber", "climbed up and up to the very top",
     "a branch broke, and {he} could not get down",
     "{His} {parent} got a ladder and carried {him} down",
     "Tomorrow we will find a good tree to climb", "a warning is there to keep us safe"),
    ("do not touch the pot, it is hot", "It smells so good", "put a finger on the pot",
     "it burned, and {his} finger turned red", "{His} {parent} put the finger in cold water",
     "When the soup is ready, you can have the first bowl", "it is better to wait a little"),
    ("do not eat all the berries", "A few more will not hurt", "ate and ate until none were left",
     "{his} tummy hurt so much that {he} could not walk",
     "{His} {parent} made tea and held {his} hand", "Tomorrow we will eat just a few",
     "too much of a good thing is not good"),
    ("do not run into the woods alone", "I know the way", "ran into the woods",
     "all the trees looked the same, and it began to get dark",
     "{His} {parent} came with a lamp and took {him} home",
     "Next time we will go into the woods together", "it is good to listen to those who love us"),
    ("do not poke the bees", "I only want a little honey", "poked the bees with a stick",
     "the bees came out, and they were very angry", "They ran to the pond and hid in the water",
     "If we ask nicely and wait, the bees leave some honey for us",
     "it is good to leave others in peace"),
    ("do not open the gate", "I only want to look", "opened the gate",
     "all the sheep ran out, down the hill and into the corn",
     "Together they called the sheep and brought them back, one by one",
     "You can help me look after the sheep each day", "small things can make big trouble"),
    ("do not jump in the mud in your new coat", "Just one little jump", "jumped into the mud",
     "{he} sank in, and {his} feet were stuck",
     "{His} {parent} pulled and pulled until {he} came out with a pop",
     "When you wear old clothes, we will jump together", "there is a right time for every game"),
])

# Telling the truth about something broken.
plot("""
{open} {likes}

{oneday} {who} was (playing|running around|dancing) in the {room}. Crash! {He} bumped into the
{thing}, and it (fell down|fell on the floor) and broke. "Oh no," whispered {H}. "That is the
{thing} of my {parent}. {Parent} will be so angry." {H} (hid the pieces {hide}|took the pieces and
hid them {hide}) and said nothing.

But all day {H} felt (bad|strange) inside. {He} did not want to (eat|play|sing). In the evening,
{his} {parent} asked, "{H}, have you seen my {thing}?" {H} wanted to say no. But then {he} took a
deep breath. "I broke it," {he} said. "I am (so|very) sorry. I was afraid to tell you."

{His} {parent} was quiet for a moment. Then {his} {parent} said, "(Thank you for telling me|I am
glad that you told me) the truth. A {thing} can be {mend}, but {trust}." They got the {tool} and
{mended}. {new}. {moral} {end}
""", hero="child", truth=[
    ("thing", "room", "mend", "tool", "mended", "new"),
    ("blue vase", "living room", "mended", "glue", "put the pieces together, one by one",
     "The vase had many lines now, and they put flowers in it"),
    ("lamp", "bedroom", "mended", "tape", "fixed the lamp together",
     "When they turned it on, it made funny shapes on the wall"),
    ("big cup", "kitchen", "mended", "glue", "put the cup together again",
     "It was no good for tea now, so they planted a little flower in it"),
    ("clock", "hall", "mended", "tools", "put all the little wheels back in their places",
     "The clock went tick, tock again, only a little slower than before"),
    ("picture", "living room", "mended", "hammer", "made a new frame for it",
     "{H} painted the frame with yellow stars"),
    ("music box", "bedroom", "mended", "tools", "turned the little key until it played again",
     "It played the same song, and they danced to it"),
], hide=[
    ("hide",), ("under the bed",), ("behind the sofa",), ("in a box",), ("under the rug",),
], why=[
    ("trust", "lesson"),
    ("a lie makes a bigger hole", "telling the truth makes the heart light"),
    ("we must always be able to trust each other", "it is best to tell the truth"),
    ("the truth is worth more", "it takes a brave heart to tell the truth"),
])
