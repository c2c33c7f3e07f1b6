# trace_check.pl FILE STAGES: the trace is whole and makes sense. Slices of a track lie inside one another
# or beside each other; every stretch that begins ends, later; a stage walks a step's rows after the stage
# before it has (which also says that clocks agree); every walk but a first stage's has a crossing before
# it. Prints "NAME COUNT" for each name of slices, and of stretches.
use strict;
use warnings;
use JSON::PP;
my ($path, $n_stages) = @ARGV;
open my $in, '<', $path or die "$path: $!";
my $trace = decode_json(join '', <$in>);
my (%track, %begun, %count, %walk, %entered);
for my $e (@{$trace->{traceEvents}}) {
    my $ph = $e->{ph};
    next if $ph eq 'M';
    die "before the trace: $e->{name}" if $e->{ts} < 0;
    if ($ph eq 'X') {
        push @{$track{"$e->{pid}.$e->{tid}"}}, $e;
        my $a = $e->{args};
        $walk{"$e->{pid} $a->{step} $a->{round} $a->{group} " . ($e->{tid} - 1)} = $e
            if $e->{name} =~ /^(decode|prompt|verify)$/;
    } elsif ($ph eq 'b') {
        die "begun twice: $e->{id}" if $begun{"$e->{cat} $e->{id}"};
        $begun{"$e->{cat} $e->{id}"} = $e;
        my $a = $e->{args};
        $entered{"$e->{pid} $a->{step} $a->{round} $a->{group} $1"} = 1
            if $e->{cat} eq 'boundary' && $e->{name} =~ /-> ([0-9]+)$/;
    } elsif ($ph eq 'e') {
        my $b = delete $begun{"$e->{cat} $e->{id}"} or die "ends and has not begun: $e->{id}";
        die "ends before it begins: $e->{id}" if $e->{ts} < $b->{ts};
        $count{$e->{name}}++;
    }
}
die "never ended: " . join(', ', sort keys %begun) if %begun;
my $slack = 0.002; # microseconds: two roundings
for my $slices (values %track) {
    my @open;
    for my $x (sort { $a->{ts} <=> $b->{ts} || $b->{dur} <=> $a->{dur} } @$slices) {
        $count{$x->{name}}++;
        pop @open while @open && $open[-1]{ts} + $open[-1]{dur} <= $x->{ts} + $slack;
        next if !@open || $x->{ts} + $x->{dur} <= $open[-1]{ts} + $open[-1]{dur} + $slack
            ? push @open, $x
            : die "$x->{name} at $x->{ts} overlaps $open[-1]{name}";
    }
}
for my $key (keys %walk) {
    my ($pid, $step, $round, $group, $stage) = split ' ', $key;
    next if $stage == 0;
    die "nothing crossed before $key" unless $entered{"$pid $step $round $group $stage"};
    my $before = $walk{"$pid $step $round $group " . ($stage - 1)} or die "no walk before $key";
    die "walked too early: $key" if $before->{ts} + $before->{dur} > $walk{$key}{ts} + $slack;
}
my @last = grep { / $n_stages$/ } map { s/(\d+)$/$1 + 1/er } keys %walk;
die "the last stage walked nothing" unless @last;
print "$_ $count{$_}\n" for sort keys %count;
