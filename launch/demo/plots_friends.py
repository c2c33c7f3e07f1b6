"""Plots about friends, presents, practice and rainy days.

See stories.py for the language they are written in.
"""

from plots import plot

# Someone new and shy.
plot("""
{open} {likes}

{oneday} someone new came to (live there|live next door|the neighborhood). It was {fintro}. {F}
was very shy and (sat alone {spot}|stood all alone {spot}). (The others|All the others) were
playing {game}, but nobody asked {F} to play.

{H} saw this. "{F} looks (lonely|sad)," {H} thought. {He} walked over and said, "(Hi|Hello)! My
name is {H}. Do you want to play {game} with us?" {F} looked (down|at the ground). "I do not know
how," {F} (whispered|said in a small voice). "That is okay," said {H}. "I will show you."

{H} showed {F} how to play. At first it was hard, but {H} was patient. Then {turn}.
"(Hooray!|Wow!) You are really good!" (the others shouted|shouted the others). {F} had a big smile
now. "Thank you for asking me, {H}," said {F}. {friends} {finish}
""", game=[
    ("game", "turn"),
    ("ball", "{F} kicked the ball right into the goal"),
    ("tag", "{F} ran so fast that nobody could catch {fhim}"),
    ("hide and seek", "{F} hid so well that they looked for a long, long time"),
    ("with the big kite", "{F} made the kite fly higher than the trees"),
    ("music", "{F} sang, and it was the nicest voice that they had ever heard"),
    ("with the jump rope", "{F} jumped ten times, then twenty, then thirty"),
    ("pirates", "{F} made a pirate hat out of leaves for everyone"),
    ("with blocks", "{F} built a tower that was taller than all of them"),
], place=[
    ("spot",), ("under a tree",), ("on a bench",), ("by the fence",), ("near the wall",),
], wise=[
    ("lesson",), ("a kind word can make a new friend",), ("it is easy to be kind",),
    ("everyone is good at something",), ("a friend is only one hello away",),
])

# A present without money.
plot("""
{open} {likes}

It was the birthday of {his} {parent}, and {H} wanted to give {phim} a present. But {H} had no
money. "What can I do?" {he} thought. {He} went to {Fx} and asked, "What do you give to someone
you love?" "{hint}," said {F}. "It does not have to cost anything."

{H} (ran|went) {where}. There {he} found {stuff}. {He} sat down and worked very (hard|quietly).
{He} {made}. {trouble}. But {H} did not give up, and at last the {gift} was ready.

In the evening, {H} gave the {gift} to {his} {parent}. "(Happy birthday!|This is for you!) I made
it myself," said {H}. {His} {parent} looked at the {gift} and had tears of joy in {phis} eyes.
"This is the best present of all," said {his} {parent}, "because {because}." {moral} {end}
""", gift=[
    ("gift", "hint", "where", "stuff", "made", "trouble", "because", "lesson"),
    ("necklace", "Something that you made with your own hands", "to the beach",
     "many small shells", "put the shells on a string",
     "The string broke, and {he} had to start again", "you made it with love",
     "the best presents come from the heart"),
    ("picture", "Something that shows how you feel", "to the table by the window",
     "paper and some paints", "painted the two of them under a big sun",
     "The paint ran, and {he} had to start again", "I can see us both in it",
     "the best presents come from the heart"),
    ("flower crown", "Something that smells like summer", "to the meadow",
     "white and yellow flowers", "tied the flowers together, one after the other",
     "A goat ate some of them, and {he} had to pick more", "it smells like a summer day",
     "a present does not need to cost money"),
    ("song", "Something that comes from inside you", "to the quiet place by the river",
     "the sound of the water", "made a song out of the sound and sang it again and again",
     "It was hard to remember all the words", "nobody else in the world has it",
     "the best presents come from the heart"),
    ("basket", "Something that is useful", "to the river", "long green grass",
     "wove the grass into a little basket", "The grass cut {his} finger a little",
     "I will use it every day", "a present does not need to cost money"),
    ("lamp", "Something that makes the night bright", "to the garden",
     "an old jar and some leaves", "put the leaves on the jar and a candle inside",
     "The leaves fell off again and again", "it makes our home warm and bright",
     "the best presents come from the heart"),
])

# Learning something by trying again.
plot("""
{open} {H} wanted to {skill} more than anything. (All the others could do it.|{F}, {his} friend,
could do it very well.)

{oneday} {who} tried. But {fail1}. {He} tried again, and {fail2}. {H} {sad}. "I will never
{skill}," {he} said. {Fi} was (watching|there). "I could not do it either at first," said {F}. "Do
you want to know how I learned it? {tip}."

So {H} practiced. On Monday, {day1}. On Tuesday, {day2}. On Wednesday, {H} was tired, but {he}
tried (once more|again and again). And then {success}! "I did it! I did it!" {H} shouted. {F}
clapped and cheered.

{show}. "How did you do it?" asked {his} {parent}. "{secret}," said {H} with a (big |proud
|)smile. {finish}
""", skill=[
    ("skill", "fail1", "fail2", "tip", "day1", "day2", "success", "show"),
    ("ride a bike", "the bike fell to the left", "the bike fell to the right",
     "Look far ahead, not down at your feet", "{he} rode as far as the gate",
     "{he} rode as far as the old tree", "{he} rode all the way down the street",
     "{H} rode home and rang the bell at the door"),
    ("swim", "{he} got water in {his} nose", "{he} sank like a stone",
     "Lie on the water as if it was your bed", "{he} could float a little",
     "{he} kicked and splashed from the rock to the sand", "{he} swam across the whole pond",
     "{H} took {his} {parent} to the pond and swam like a fish"),
    ("whistle", "only air came out", "it sounded like a sad balloon",
     "Make your lips as round as a cherry", "there was a tiny sound",
     "the sound was a bit longer", "a clear, long whistle came out",
     "{H} whistled a song all the way home"),
    ("tie {his} shoes", "the knot came open", "{he} tied both shoes together",
     "Make two ears like a rabbit and put one through the hole", "{he} made one ear",
     "{he} made two ears", "the knot was tight and pretty",
     "{H} tied the shoes of everyone at home"),
    ("jump rope", "the rope got stuck on {his} feet", "the rope hit {his} head",
     "Listen to the rope and count one, two, three", "{he} jumped two times",
     "{he} jumped five times", "{he} jumped twenty times without a stop",
     "{H} took the rope home and jumped in the kitchen"),
    ("skate on the ice", "{his} feet went up in the air", "{he} landed in the snow",
     "Bend your knees and go slowly", "{he} stood without falling", "{he} made three small steps",
     "{he} went round the lake like the wind",
     "{H} took {his} {parent} to the lake and made a circle on the ice"),
    ("bake bread", "the bread was as flat as a plate", "the bread was as hard as a rock",
     "Let the dough sleep under a warm cloth", "the bread was a little soft",
     "the bread was soft but too small", "the bread was big and round and smelled wonderful",
     "{H} put the warm bread on the table for dinner"),
], secret=[
    ("secret", "lesson"),
    ("I tried again and again", "we learn by trying again"),
    ("I did not give up", "it is good not to give up"),
    ("A friend showed me how, and then I practiced", "practice makes hard things easy"),
])

# A friend is ill.
plot("""
{open} {H} had a good friend. It was {fintro}. They played together every day.

{oneday} {F} did not come out to play. {H} waited and waited. Then {he} went to {fhis} house and
looked in at the window. {F} was in bed with a {ill}. "I feel so (bad|weak)," said {F}. "I can not
come out to play." {H} {felt}. "I must do something," {he} thought.

{H} went home and asked {his} {parent}, "What helps against a {ill}?" "{cure}," said {his}
{parent}. So {H} {got} and brought it to {F}. {F} {took} and smiled a little. Then {H} sat by the
bed and {fun}. {F} laughed, and {fhe} (forgot|almost forgot) that {fhe} was ill.

{H} came every day. After (three|four|five) days, {F} was well again. They ran out into the sun
together. "You are the best (doctor|friend) in the world," said {F}. {finish}
""", ill=[
    ("ill", "cure", "got", "took"),
    ("bad cold", "Hot soup is good for that", "made a pot of hot soup", "ate the soup"),
    ("sore throat", "Tea with honey is good for that", "made tea with honey", "drank the tea"),
    ("fever", "Cold water and a lot of rest", "filled a bottle with cold water",
     "drank the water"),
    ("tummy ache", "Warm tea and a soft pillow", "made warm tea", "drank the tea"),
    ("bad cough", "Milk with honey is good for that", "made a cup of warm milk with honey",
     "drank the milk"),
], fun=[
    ("fun",), ("told a funny story about a cow that could fly",),
    ("sang all the songs that {he} knew",), ("made shadow animals on the wall",),
    ("read from a book about a pirate",),
    ("drew pictures of all the things they would do together soon",),
], feel=[
    ("felt", "lesson"),
    ("was worried", "a friend is the best medicine"),
    ("was sad for {F}", "good friends are there on bad days too"),
    ("thought of all their games", "a little care makes others strong"),
])

# A rainy day and a box.
plot("""
{open} {likes}

(One day|One morning), it was raining (very hard|and raining). {who} could not go outside. "(I am
so bored|There is nothing to do)," said {H}. {His} {parent} gave {him} {box}. "What can I do with
that?" asked {H}. "(Close your eyes and think|That is up to you)," said {his} {parent}. "It can be
anything you want."

{H} looked at it for a long time. Then {he} had an idea. "It is {dream}!" {he} shouted. {Fi} came
over, and they climbed in together. "{go}!" said {H}. They {trip}. On the way they saw {sight}.
"{danger}!" cried {F}. But {H} {solve}, and all was well.

After a while, {H} looked out of the window. The rain had stopped, and there was a rainbow in the
sky. "You can go out (now|and play now)," said {his} {parent}. "Not yet," said {H} and {F}.
"{notyet}!" {moral} {end}
""", box=[
    ("box",), ("a big box",), ("an old blanket and two chairs",), ("a big basket",),
], dream=[
    ("dream", "go", "trip", "sight", "danger", "solve", "notyet"),
    ("a ship", "Pull up the sail", "sailed over the wide sea", "a whale and seven islands",
     "A storm is coming", "turned the wheel to the left", "First we have to find the treasure"),
    ("a rocket", "Five, four, three, two, one, go", "flew to the moon", "a thousand stars",
     "There is a big rock in front of us", "pushed the red button and flew around it",
     "First we have to land on the moon"),
    ("a train", "All aboard", "drove over hills and under mountains",
     "cows, bridges and a castle", "There is a sheep on the track",
     "rang the bell until the sheep walked away", "First we have to get to the last station"),
    ("a castle", "Close the gate", "were the queen and king of all the land",
     "a long road with many knights", "A dragon is coming", "gave the dragon a cookie",
     "The dragon wants another cookie"),
    ("a submarine", "Dive", "went down to the bottom of the sea", "red fish and blue fish",
     "A giant crab is coming", "turned off the light until it went by",
     "First we must say goodbye to the fish"),
], wise=[
    ("lesson",), ("a rainy day can be the best day",), ("you can go anywhere if you can dream",),
    ("there is always something to play",),
])

# A hungry stranger at the door.
plot("""
{open} {H} lived with {his} {parent}. They did not have much, but they were happy.

One (cold|rainy|windy) evening, someone knocked at the door. {H} opened it and saw {guest}. "I
have walked all day, and I am so (hungry|cold|tired)," said {g}. "May I come in?" "(Of
course|Please, come in)," said {H}. {He} gave {ghim} {meal} and a place by the fire. It was the
last {last} in the house, but {H} did not say so.

The stranger ate and smiled. "You gave me the last that you had," said {g}. "{gift_words}." In the
morning, the stranger was gone. But on the table there was {gift}. {gift_does}! {H} (called|ran
to) {his} {parent}. "(Look what the stranger left for us|Come and see)!" {he} said.

From then on, they were never hungry again, and when someone knocked at the door, {H} always
opened it. {moral} {end}
""", guest=[
    ("guest", "g", "ghim"),
    ("an old man with a long beard", "the old man", "him"),
    ("an old woman in a gray coat", "the old woman", "her"),
    ("a tired man with a heavy bag", "the man", "him"),
    ("a woman with wet hair", "the woman", "her"),
], meal=[
    ("meal", "last"),
    ("some soup", "soup"),
    ("bread and cheese", "bread"),
    ("a bowl of rice", "rice"),
    ("warm milk and bread", "milk"),
], gift=[
    ("gift", "gift_words", "gift_does", "lesson"),
    ("a little pot", "A kind heart should not stay hungry",
     "When {H} lifted the lid, it was full of hot soup", "kindness always comes back"),
    ("a small brown seed", "A kind heart should have a garden",
     "{H} planted it, and the next day there was a tree full of apples",
     "those who give will also get"),
    ("a blue bowl", "A kind heart should not stay hungry",
     "It was full of rice, and when it was empty, it filled itself again",
     "it is good to share, even when we have little"),
    ("a white hen", "A kind heart should have good company", "Every morning it laid two big eggs",
     "kindness always comes back"),
])

# A room that nobody wants to tidy.
plot("""
{open} {likes} But there was one thing {he} did not like: {he} did not like to tidy up.

{oneday} {his} {parent} said, "{H}, please tidy up your room." "Later," said {H}. {He} wanted to
{use} first. But where was the {thing}? {He} looked under the {mess1}, and {he} looked behind the
{mess2}. There were so many things on the floor that {he} could not find it. {He} even {slip}.
"Ouch!" said {H}.

{Fi} came in and looked around. "(Was there a storm in here?|Did a bear live here?)" asked {F}.
{H} had to laugh. "Let us make a game out of it," said {F}. "{game}." So they began. {fun}. Soon
{H} could see the floor again, and there, under the very last {mess2}, was the {thing}!

"That was (fun|a good game)," said {H}. {His} {parent} looked in and (could not believe it|was
amazed). "Who lives in this nice room?" asked {his} {parent}. "I do!" said {H}. Then {H} and {F}
went to {use} together. {finish}
""", thing=[
    ("use", "thing"),
    ("play ball", "ball"),
    ("fly the kite", "kite"),
    ("play the drum", "drum"),
    ("read a story", "book"),
    ("play with the car", "car"),
    ("draw a picture", "box of colors"),
], mess=[
    ("mess1", "mess2", "slip"),
    ("blanket", "shirt", "stepped on a block"),
    ("bed", "pillow", "fell over a shoe"),
    ("table", "coat", "slipped on a sock"),
], game=[
    ("game", "fun"),
    ("All the red things first, then all the blue ones",
     'They called, "Red! Blue! Green!" and ran around the room'),
    ("We are pirates, and every toy is a bit of treasure",
     'They shouted, "Ahoy!" and carried the treasure to the big box'),
    ("We sing a song, and when it ends, we must be done",
     "They sang faster and faster and threw the socks into the basket"),
    ("The shelf is a hotel, and all the toys need a bed",
     "They put each toy in its place and said good night to it"),
], wise=[
    ("lesson",), ("work is easy when it is a game",), ("a place for every thing saves time",),
    ("it is easier to do things together",),
])
