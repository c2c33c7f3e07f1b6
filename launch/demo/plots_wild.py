"""Plots about animals and the woods.

See stories.py for the language they are written in.
"""

from plots import plot

# An animal in trouble is helped, and later it helps in its own way.
plot("""
{open} {likes}

{oneday} {who} was walking {where} when {he} heard a small voice. "Help! Help!" {H} looked around
and saw {a_beast}. {trouble}. "Please help me," said the {beast}. "Do not be afraid," said {H}.
{He} {help}. "Thank you," said the {beast}. "You are kind. (One day I will help you too|I will not
forget it)." {H} laughed. "You are so small! How could you help me?" (But {he} was glad that the
{beast} was safe.|And {he} waved goodbye.)

Some days later, {H} {need}. {He} {sad2}. Just then {he} heard a small voice that {he} knew. It
was the {beast}! "Now it is my turn," said the {beast}. {favor}. {H} {glad}. "(You were right|I
was wrong), little friend," said {H}. "{wise}." {finish}
""", beast=[
    ("a_beast", "beast", "where", "trouble", "help", "need", "sad2", "favor"),
    ("a little mouse", "mouse", "in the tall grass", "It was caught under a heavy branch",
     "lifted the branch with all {his} strength", "was caught in an old net",
     "pulled and pulled, but the net was too strong",
     "It bit through the net with its sharp teeth, and {H} was free"),
    ("a small bird", "bird", "under the trees", "It had fallen out of its nest",
     "climbed up and put the bird back in its nest", "lost the way in the fog",
     "could not see where to go",
     "It flew up over the fog and called from above, and {H} followed the voice all the way home"),
    ("a little fish", "fish", "along the river",
     "It was lying on the warm sand and could not breathe",
     "carried it back to the water with both {hands}", "dropped {his} silver key into the river",
     "could not see the key at all",
     "It dived down and came up with the silver key in its mouth"),
    ("a tiny ant", "ant", "by the stream", "It had fallen into the water",
     "held out a long leaf, and the ant climbed onto it",
     "spilled a big bag of rice in the grass", "could not pick up so many grains",
     "It called all its brothers and sisters, and grain by grain they filled the bag again"),
    ("a baby turtle", "turtle", "on the beach",
     "It was lying on its back and could not turn around", "turned it over very gently",
     "was on the other side of the river when the bridge broke", "did not know how to get home",
     "It was big now, and {H} could stand on its back and cross the river"),
    ("a small bee", "bee", "through the meadow", "It was stuck in a spider web",
     "opened the web with a thin stick", "was hungry and had nothing to eat",
     "looked everywhere, but there was no food",
     "It flew to its home and showed {H} a tree that was full of honey"),
    ("a little firefly", "firefly", "near the pond", "It was shut in an old jar",
     "opened the jar and let it out", "was in the woods when it got dark",
     "could not see the path",
     "It called its friends, and they made a long line of lights along the path"),
    ("a young spider", "spider", "past the old fence", "The wind had blown its web away",
     "found it a quiet corner behind the fence", "tore a hole in {his} favorite coat",
     "had no needle and no thread", "It made a thread, thin and strong, and closed the hole"),
], wise=[
    ("wise", "lesson"),
    ("Small friends can be a big help", "even small friends can be a big help"),
    ("Nobody is too small to help", "nobody is too small to help"),
    ("A kind deed comes back", "kindness always comes back"),
])

# A race: the slow one stops to help, or simply goes on.
plot("""
{open} {H} was not very fast. {F} the {fkind} was the fastest of all and (laughed at {him}|said so
every day). "You are (so slow|as slow as a snail), {H}!" said {F}.

One day, there was a big race {where}. The (prize|winner's prize) was {prize}. All the animals
came. "Ready, set, go!" shouted the old owl. {F} ran away like the wind, and {H} was the last one.
{mid}

{F} was so far ahead that {fhe} {stop}. "I have so much time," thought {F}. But {H} went on, step
by step. {He} passed {F} and did not stop. When {F} looked up, it was too late! {F} ran as fast as
{fhe} could, but {H} was already (there|at the end). "{H} has won!" shouted everyone.

{F} (looked at the ground|was ashamed). "I am sorry that I laughed at you," said {F}. "{sharep},"
said {H}. So {enjoy}. {moral} {end}
""", hero="animal", race=[
    ("where", "mid"),
    ("around the lake", "On the way, the sun was hot, but {H} did not stop to drink."),
    ("up the hill", "The hill was steep, but {H} looked only at the next step."),
    ("through the woods", "There were many roots, but {H} climbed over each one."),
    ("across the meadow", "The grass was tall, but {H} knew where to go."),
], stop=[
    ("stop",), ("lay down under a tree and fell asleep",), ("stopped to eat berries",),
    ("stopped to look at {fhimself} in the water",), ("sat down to talk to a butterfly",),
], prize=[
    ("prize", "sharep", "enjoy"),
    ("a big cake", "The cake is big enough for two", "they ate the cake together"),
    ("a basket of apples", "Take an apple. They taste better with a friend",
     "they shared the apples with everyone"),
    ("a golden cup", "We can both drink from the cup",
     "they filled the cup with juice and drank from it"),
    ("a jar of honey", "Get a spoon, there is a lot of honey",
     "they ate honey until the jar was empty"),
], wise=[
    ("lesson",), ("slow and steady can win the race",), ("it is not good to laugh at others",),
    ("those who go on will get there",),
])

# A seed needs time.
plot("""
{open} {likes}

One (spring |)(day|morning), {who} found a (tiny|little|small) seed {where}. "What will you be?"
asked {H}. The seed said nothing. {H} dug a hole in the {soil}, put the seed in and covered it.
Then {he} gave it water and sat down to wait. But nothing happened.

The next day, {H} looked again. Nothing. {F}, {his} {fellow}, came by and laughed. "You are
looking at dirt!" said {F}. "It is not dirt, it is a {grown} that is not here yet," said {H}. {He}
gave it water every day. When it was hot, {he} {hot}. When the wind was strong, {he} {wind}.

Then, one morning, there was something green! It grew and grew. In summer it was as tall as {H}.
{bloom}. {F} came by again and could not believe it. "(How did you do that?|Is that your dirt?)"
asked {F}. "{secret}," said {H}. {share}. {finish}
""", seed=[
    ("grown", "bloom", "share"),
    ("sunflower", "It had a big yellow face that turned to the sun",
     "{H} gave {F} a few seeds, so that {fhe} could grow one too"),
    ("pumpkin", "And in autumn there was a pumpkin as big as a chair",
     "They made soup out of it, and there was enough for everyone"),
    ("tomato plant", "Soon there were red tomatoes all over it",
     "{H} and {F} ate them in the sun, one after the other"),
    ("strawberry plant", "Under the leaves there were sweet red berries",
     "{H} picked the biggest one and gave it to {F}"),
    ("bean", "It climbed up the wall and had a hundred white flowers",
     "{H} and {F} sat in its shade on hot days"),
    ("rose", "It had one red flower that smelled so sweet",
     "Everyone who walked by stopped and smiled"),
], where=[
    ("where", "soil"),
    ("in {his} pocket", "garden"),
    ("on the path", "soft ground"),
    ("under a stone", "garden"),
    ("on the window", "big pot"),
], care=[
    ("hot", "wind"),
    ("gave it more water", "put a little stick next to it"),
    ("made a roof of leaves for it", "stood in front of it"),
    ("sang to it in the shade", "tied it to a stick"),
], secret=[
    ("secret", "lesson"),
    ("I gave it water and time", "good things need time"),
    ("I waited and did not give up", "it is good to be patient"),
    ("I took care of it every day", "with care, small things grow big"),
])

# Lost, and led home.
plot("""
{open} {likes}

{oneday} {who} saw {lure}. It was so pretty that {H} (wanted|just had) to follow it. {He} followed
it over the hill, across the stream and deep into the woods. Then it was gone. {H} looked around.
{He} did not know this place. "Where am I?" {he} said. The sun was going down, and {H} {sad}.

"Who is crying under my tree?" said a voice. It was {guide}. "I am {H}, and I am lost," said {H}.
"{calm}," said the {g}. "What can you remember of your home?" {H} thought. "{clue}," {he} said.
"Ah," said the {g}. "{sense}."

The {g} {lead}, and {H} followed. {mid}. And then {H} saw the light in the window of {his} {home}!
{His} {parent} was at the door and ran to {him}. "{H}! I was so worried!" {H} turned around to say
thank you, but the {g} was {gone}. {finish}
""", lure=[
    ("lure",), ("a blue butterfly",), ("a red bird with a long tail",),
    ("a golden leaf that danced in the wind",), ("a tiny light between the trees",),
    ("a white feather in the air",),
], guide=[
    ("guide", "g", "calm", "sense", "lead", "gone"),
    ("an old owl", "owl", "Do not cry, little one", "I can see it from the top of my tree",
     "flew from tree to tree", "already in the dark sky"),
    ("a big brown dog", "dog", "Dry your tears", "My nose can find the way",
     "put its nose to the ground and walked ahead", "already running back through the grass"),
    ("a gray fox", "fox", "Do not be afraid", "I know every path in these woods",
     "walked ahead with quiet feet", "only a shadow between the trees"),
    ("a deer with big eyes", "deer", "You are safe with me", "I drink from the stream near there",
     "walked slowly, so that {H} could keep up", "already back among the trees"),
], clue=[
    ("clue", "mid"),
    ("There is a stream, and the water sings", "First they heard the stream that sang"),
    ("There is a tall tree that looks like a hand",
     "Soon they passed the tree that looked like a hand"),
    ("It smells of fresh bread in the evening", "Soon the air smelled of fresh bread"),
    ("There is a bell that rings at night", "Far away a bell began to ring"),
], wise=[
    ("lesson",), ("it is good to look where you go",), ("there are friends everywhere",),
    ("home is the best place of all",), ("even in the dark there is someone who can help",),
])

# Too small to play, until small is just right.
plot("""
{open} {H} was the smallest of all. When the others played, they always said, "You are too small,
{H}." {H} {sad}.

{oneday} the others were playing {where}. Suddenly {F} cried, "{problem}!" Everyone came to look.
{big1} tried, but {bigfail}. {big2} tried too, but it was no use. "What can we do now?" asked {F}.

"Let me try," said {H}. "You? But you are so small," said the others. "That is why," said {H}.
{He} {did}. It was {feel}, but {H} was brave. (They all waited.|Nobody said a word.) Then they
heard {H} shout, "I have got it!" And {he} came back with {prize}.

"Hooray for {H}!" shouted everyone. {F} gave {him} a hug. "We were wrong," said {F}. "You are not
too small. You are just right." From then on, {H} could play with them every day. {finish}
""", problem=[
    ("where", "problem", "did", "feel", "prize"),
    ("by the old wall", "My ball fell into the hole", "went into the hole, head first",
     "dark and dusty", "the ball"),
    ("in the barn", "The kitten is stuck behind the hay", "crawled through a tiny gap in the hay",
     "hot and dusty", "the kitten in {his} arms"),
    ("near the bushes", "My kite is in the thorns", "crept under the thorns without a scratch",
     "narrow and dark", "the kite"),
    ("by the hollow tree", "The key fell into the tree", "slid down into the hollow tree",
     "dark and full of spiders", "the key"),
    ("by the fence", "The baby chick ran under the boards",
     "went flat on the ground and crawled under the boards", "wet and cold",
     "the chick in {his} hat"),
], big=[
    ("big1", "big2", "bigfail"),
    ("The tall one", "The strong one", "there was no room"),
    ("The strongest of them", "The oldest of them", "the way in was too narrow"),
    ("{F}", "The biggest of them", "the way in was too small"),
], wise=[
    ("lesson",), ("everyone is good at something",), ("it is not important how big you are",),
    ("small can be just right",),
])

# A storm takes a home; the others build it again.
plot("""
{open} {H} lived in a little {home}, and {he} was happy there. {F} the {fkind} lived not far away.

One night, there was a big storm. The wind blew and blew. (Crack!|Crash!) In the morning, {H}'s
{home} was {broken}. {H} sat down in the wet grass and {sad}. "My home is gone," {he} said. "Where
can I sleep now?"

{F} came by. "You can sleep in my house tonight," said {F}. "And tomorrow we will build you a new
home." {F} told {o1}, and {o1} told {o2}. The next day they all came. {F} brought {b1}, {o1}
brought {b2}, and {o2} brought {b3}. "(Why do you all help me?|You are so kind! Why do you do
this?)" asked {H}. "Because {because}," said {F}.

They worked all day, and they sang while they worked. In the evening the new {home} was ready, and
it was (even |)(nicer|stronger) than the old one. {H} {glad}. {He} cooked {food2} for everyone,
and they ate it under the stars. {finish}
""", hero="animal", storm=[
    ("broken", "because", "lesson"),
    ("full of water", "you carried water for me when I was ill", "kindness always comes back"),
    ("under a fallen tree", "that is what friends are for", "friends help when times are hard"),
    ("blown away", "a home is only a home when friends are near",
     "together we can build anything"),
    ("broken in two", "you shared your food with us last winter", "those who give will also get"),
], crew=[
    ("o1", "o2"),
    ("the beaver", "the badger"),
    ("the mole", "the deer"),
    ("the old goat", "the crow"),
    ("the beaver", "the crow"),
    ("the sheep", "the donkey"),
], bring=[
    ("b1", "b2", "b3"),
    ("wood", "stones", "soft moss"),
    ("a hammer", "long boards", "a bag of nails"),
    ("straw", "mud and sticks", "a warm blanket"),
    ("leaves", "branches", "a strong rope"),
], food2=[
    ("food2",), ("a big pot of soup",), ("sweet pancakes",), ("apple pie",),
])

# Greedy and stuck.
plot("""
{open} {H} loved {food} more than anything else. {He} could eat {food} all day.

{oneday} {who} smelled something good. It came from {where}. {H} looked in, and there was a whole
{heap} of {food}! The way in was {small}, but {H} {squeeze}. {He} ate and ate. "{F} would like
this too," {he} thought. "But if I tell {F}, there will be less for me." So {he} ate it all alone.

When nothing was left, {H} wanted to go home. But {his} tummy was so big and round that {he} was
stuck! {He} pushed and pulled, but it was no use. "Help!" cried {H}. {F} the {fkind} heard {him}
and came. "(Why are you stuck in there?|What happened to you?)" asked {F}. {H} turned red. "I ate
all the {food} and did not share with you," {he} said. "I am sorry."

{F} laughed. "I will help you all the same," said {F}. {F} {free}. Plop! {H} was free. The next
time {H} found {food}, {he} (ran|went) to {F} first. "Come, there is enough for two!" {he} said.
{finish}
""", hero="animal", hole=[
    ("where", "small", "squeeze"),
    ("a hole under a barn", "very small", "made {himself} thin and went in"),
    ("an old hollow log", "narrow", "pushed {his} head in first"),
    ("a gap in a garden wall", "tiny", "held {his} breath and went through"),
    ("a basket with a small lid", "not very wide", "climbed in with both feet"),
], heap=[
    ("heap",), ("heap",), ("pile",), ("sack",),
], free=[
    ("free",), ("pulled with all {fhis} strength",),
    ("told a funny story until {H} laughed so hard that {he} slipped out",),
    ("put some oil around {H} and pulled",),
    ("sat with {him} all night, until {H} was thin again, and then pulled",),
], wise=[
    ("lesson",), ("food tastes best when we share it",), ("it is not good to be greedy",),
    ("if you keep it all, you can get stuck with it",),
])

# Being different is good for something.
plot("""
{open} {H} was not like the others. {He} had {odd}. "(Look at {H}!|You look so funny!)" the others
said, and they laughed. {H} {sad}. {He} tried to {hide}, but it did not help. "I wish I was like
everyone else," {he} said.

{oneday} {trouble}. Everyone was afraid. Nobody knew what to do. But {H} had an idea. "{idea},"
{he} said. {He} {did}. {saved}!

Nobody laughed now. "{H} has saved us!" said {F} the {fkind}. "I am sorry that we laughed. You and
your {part} are wonderful." {H} {glad}. From that day on, when {he} saw {his} {part} in the water
of the pond, {he} smiled. {finish}
""", hero="animal", odd=[
    ("odd", "part", "hide", "trouble", "idea", "did", "saved"),
    ("very big ears", "ears", "hide them under a hat",
     "a fire came through the dry grass, far away, and no one saw it",
     "I can hear something. It is a fire", "listened and told them which way to run",
     "All of them got to the river in time"),
    ("a very long tail", "tail", "roll it up", "a little chick fell into the well",
     "My tail is as long as a rope",
     "let {his} tail down into the well, and the chick held on to it",
     "The chick was out of the well, wet but safe"),
    ("a very long nose", "nose", "put a scarf around it",
     "everyone was hungry, and the food for the winter was lost under the snow",
     "My nose can find anything", "put {his} nose in the snow and walked around",
     "There was the food, deep under the snow"),
    ("bright yellow spots", "spots", "cover them with mud", "the little ones got lost in the fog",
     "They can see my spots from far away",
     "climbed on a rock and stood there, bright as the sun",
     "The little ones saw the spots and came back, one by one"),
    ("a very loud voice", "voice", "whisper all the time",
     "a big wave was coming to the beach where everyone was sleeping", "I must wake them up",
     "called so loudly that the hills shook", "They all woke up and ran up the hill in time"),
    ("very big feet", "feet", "hide them in the grass",
     "the dam broke, and the water ran into all the houses", "My feet can stop the water",
     "stood in the gap with both feet until the others brought stones",
     "The houses were safe and dry"),
    ("eyes that shone at night", "eyes", "keep them closed",
     "the moon was gone, and nobody could find the way home", "Follow my eyes",
     "opened {his} eyes as wide as {he} could and went ahead",
     "They all got home, and nobody was lost"),
], wise=[
    ("lesson",), ("it is good to be different",), ("what is odd can be a gift",),
    ("we should not laugh at others",),
])

# Two who will not make way.
plot("""
{open} {F} the {fkind} lived on the other side of the {river}, and over the {river} there was only
{bridge}. It was so narrow that only one could walk on it.

{oneday} {H} (wanted|had) to go to the other side, and {F} wanted to come over too. In the middle
they met. "Make way, I was here first," said {H}. "No, I was here first," said {F}. "Go back!"
said {H}. "You go back!" said {F}. They pushed and they shouted. {snap}! They both fell into the
cold water.

They swam out and sat on the grass, wet from head to toe. {H} looked at {F}, and {F} looked at
{H}. "You look funny with {funny} on your head," said {H}. "You too," said {F}, and they both
began to laugh. "Now we are cold, and nobody got to the other side," said {F}. "Next time,
{turn}," said {H}.

And so they did. {after}. {moral} {end}
""", hero="animal", bridge=[
    ("river", "bridge", "snap"),
    ("river", "an old log", "Splash"),
    ("stream", "a thin board", "Crack"),
    ("river", "a bridge made of rope", "Whoosh"),
], funny=[
    ("funny",), ("a green plant",), ("a little frog",), ("a big leaf",), ("so much mud",),
], turn=[
    ("turn", "after"),
    ("I will wait for you",
     "When they met at the bridge, one waited and the other said thank you"),
    ("we will build a wider bridge",
     "They put a second log next to the first one, and then they could walk side by side"),
    ("you go first, and then I go", "They took turns, and they always waved when they met"),
], wise=[
    ("lesson",), ("it is better to make way than to fall in",), ("it is wise to wait your turn",),
    ("a fight has no winner",),
])
