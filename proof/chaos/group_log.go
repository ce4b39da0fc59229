package main

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
)

// groupKey is a group of tasks of a queue.
type groupKey struct{ queue, name string }

// group is which tasks of a group are in play, and which wait.
type group struct {
	inPlay  map[string]bool
	waiting map[string]float64 // by 16 digits and the ID: when each is due
	// left are those in play that are no longer in the queue: who ended them did not know that
	// there are groups. They keep their places until a Worker tells that it lives.
	left map[string]bool
	// raised says that more may be in play than before, which nothing has seen to.
	raised bool
}

func cloneGroups(groups map[groupKey]*group) map[groupKey]*group {
	cloned := map[groupKey]*group{}
	for key, g := range groups {
		cloned[key] = &group{maps.Clone(g.inPlay), maps.Clone(g.waiting), maps.Clone(g.left), g.raised}
	}
	return cloned
}

// first returns the one that is to be put into play before the others that wait; "" for none.
func (g *group) first() (rest string) {
	for other := range g.waiting {
		if rest == "" || other < rest {
			rest = other
		}
	}
	return rest
}

// cutGroup reads "@<bytes of the group>:<group>" in front of a state field, and returns what is
// behind it.
func cutGroup(text string) (group, rest string) {
	size, tail, _ := strings.Cut(text, ":")
	length, err := strconv.Atoi(strings.TrimPrefix(size, "@"))
	if !strings.HasPrefix(size, "@") || err != nil || length > len(tail) {
		return "", text
	}
	return tail[:length], tail[length:]
}

// dueDigits is how many digits say when a task is due that waits in its group, in microseconds.
const dueDigits = 16

// groupMember reads a member of the groups of a queue: "!<group> NUL <ID>" of a task in play,
// "~<group> NUL <due><ID>" of one that waits.
func groupMember(member string) (sign byte, name, rest string, ok bool) {
	head, rest, found := strings.Cut(member, "\x00")
	if !found || head == "" || head[0] != '!' && (head[0] != '~' || len(rest) < dueDigits) {
		return 0, "", "", false
	}
	return head[0], head[1:], rest, true
}

// regroup carries out a command on the groups of a queue.
func (k keyspace) regroup(queue, verb string, args []string) {
	switch verb {
	case "ZADD":
		for _, member := range scored(args) {
			if sign, name, rest, ok := groupMember(member); ok {
				k.join(groupKey{queue, name}, sign, rest)
			}
		}
	case "ZREM":
		for _, member := range args {
			sign, name, rest, _ := groupMember(member)
			if g := k.groups[groupKey{queue, name}]; g != nil && sign == '!' {
				delete(g.inPlay, rest)
				delete(g.left, rest)
			} else if g != nil {
				delete(g.waiting, rest)
			}
		}
	default: // DEL, UNLINK, and commands that are not expected here
		maps.DeleteFunc(k.groups, func(key groupKey, _ *group) bool { return key.queue == queue })
	}
}

// join adds a member of a group.
func (k keyspace) join(key groupKey, sign byte, rest string) {
	g := k.groups[key]
	if g == nil {
		g = &group{inPlay: map[string]bool{}, waiting: map[string]float64{}, left: map[string]bool{}}
		k.groups[key] = g
	}
	if sign == '!' {
		g.inPlay[rest] = true
		return
	}
	due, err := strconv.ParseFloat(rest[:dueDigits], 64)
	if err != nil {
		due = math.NaN()
	}
	g.waiting[rest] = due / 1e6
}

// inPlay returns how many tasks of a group are in play.
func (k keyspace) inPlay(queue, name string) int {
	if g := k.groups[groupKey{queue, name}]; g != nil && name != "" {
		return len(g.inPlay)
	}
	return 0
}

// perGroup returns how many tasks of a group may be in play.
func perGroup(of *reign) int {
	if of == nil {
		return 1
	}
	return max(of.PerGroup, 1)
}

// groupLog is what the log shows of all groups.
type groupLog struct {
	faults []string
	left   []move // after them a task was in play and no longer in the queue
	counts tally
}

func newGroupLog() groupLog { return groupLog{counts: tally{}} }

func (r *replayer) groupAmiss(format string, args ...any) {
	r.groupLog.faults = append(r.groupLog.faults, fmt.Sprintf(format, args...))
}

// groupTurn is what an entry of the log changes of groups.
type groupTurn struct {
	was     map[groupKey]int  // how many were in play before
	changes map[groupKey]bool // whose places were seen to
}

func newTurn() *groupTurn { return &groupTurn{map[groupKey]int{}, map[groupKey]bool{}} }

// see notes what a command changes of groups, before it is carried out. What only takes out one
// that waits need not see to the places.
func (g *groupTurn) see(k keyspace, command []string) {
	queue, which := queueName(command[1])
	if which != "groups" {
		return
	}
	for _, member := range command[2:] {
		sign, name, _, ok := groupMember(member)
		if !ok { // a score
			continue
		}
		key := groupKey{queue, name}
		if _, seen := g.was[key]; !seen {
			g.was[key] = k.inPlay(queue, name)
		}
		g.changes[key] = g.changes[key] || sign == '!' || strings.EqualFold(command[0], "ZADD")
	}
}

// turned checks the groups that an entry has changed, or whose tasks it has. limits are those that
// its queues had before, if it changed them.
func (r *replayer) turned(g *groupTurn, limits map[string]*reign, before map[taskKey]task, at *entry) {
	for queue, was := range limits {
		for key, of := range r.groups {
			if key.queue == queue && perGroup(r.limits[queue]) > perGroup(was) {
				of.raised = true
			}
		}
	}
	touch := func(key taskKey, name string) {
		if _, seen := g.was[groupKey{key.queue, name}]; !seen && name != "" {
			g.was[groupKey{key.queue, name}] = r.inPlay(key.queue, name)
		}
	}
	for key, was := range before {
		touch(key, was.group)
		touch(key, r.tasks[key].group)
	}
	for key, n := range g.was {
		of := r.groups[key]
		if of == nil {
			of = &group{}
		}
		of.raised = of.raised && !g.changes[key]
		r.judgeLeft(key, of, before, at)
		r.judgeMembers(key, of, before, at)
		r.judgePlaces(key, of, n, at)
		r.judgeOrder(key, of, before, at)
		if len(of.inPlay) == 0 && len(of.waiting) == 0 {
			delete(r.groups, key)
		}
	}
}

// judgeLeft notes the tasks that are in play and not in the queue.
func (r *replayer) judgeLeft(key groupKey, of *group, before map[taskKey]task, at *entry) {
	for id := range of.inPlay {
		task := taskKey{key.queue, id}
		was, is := before[task], r.tasks[task]
		switch {
		case is.queued && is.group == key.name:
			delete(of.left, id)
		case of.left[id]:
		case was.queued && was.group == key.name && !is.queued:
			of.left[id] = true
			r.groupLog.left = append(r.groupLog.left, move{span: at.span, taskKey: task, kind: classify(was, is), was: was, is: is})
		default:
			r.groupAmiss("%v at %v is in play in the group %q, and not in the queue: %+v", task, at.span, key.name, is)
		}
	}
}

// judgeMembers checks that each task of a group that waits has one member there, its payload, and
// nothing in the queue; and that those that an entry has changed are in play, or wait.
func (r *replayer) judgeMembers(key groupKey, of *group, before map[taskKey]task, at *entry) {
	seen := map[string]bool{}
	for rest, due := range of.waiting {
		id := rest[dueDigits:]
		task := taskKey{key.queue, id}
		is := r.tasks[task]
		if seen[id] {
			r.groupAmiss("%v at %v waits twice in the group %q", task, at.span, key.name)
		}
		seen[id] = true
		isWhole := is.stored == (key.queue != plainQueue) && is.kept && !is.queued && !is.dead && (!of.inPlay[id] || of.left[id])
		if !isWhole || is.group != key.name || !alike(is.waits, due) {
			r.groupAmiss("%v at %v waits in the group %q until %f, and is half there: %+v", task, at.span, key.name, due, is)
		}
	}
	for task := range before {
		is := r.tasks[task]
		if task.queue != key.queue || is.group != key.name || is.ended {
			continue
		}
		if is.waits != 0 && !seen[task.id] || is.queued && !of.inPlay[task.id] {
			r.groupAmiss("%v at %v is in the group %q, which does not have it: %+v", task, at.span, key.name, is)
		}
	}
}

// judgePlaces checks that no more are in play than may be, unless they were before, and that none
// waits while a place is free.
func (r *replayer) judgePlaces(key groupKey, of *group, was int, at *entry) {
	n, most := len(of.inPlay), perGroup(r.limits[key.queue])
	if n > max(most, was) {
		r.groupAmiss("the group %v has %d in play at %v, and may have %d", key, n, at.span, most)
	}
	if of.raised = of.raised && n < most && len(of.waiting) > 0; of.raised {
		r.groupLog.counts["groups: places that were not used yet"]++
	} else if n < most && len(of.waiting) > 0 {
		r.groupAmiss("the group %v has %d in play at %v, and may have %d: %s waits in vain", key, n, at.span, most, of.first()[dueDigits:])
	}
	if len(of.waiting) > 0 {
		r.groupLog.counts["groups: changes while some wait"]++
	}
	if n > 1 {
		r.groupLog.counts["groups: changes while several are in play"]++
	}
}

// judgeOrder checks that no task in play that no worker has had, and none that has just been
// claimed for the first time, is due later than one that waits.
func (r *replayer) judgeOrder(key groupKey, of *group, before map[taskKey]task, at *entry) {
	first := of.first()
	if first == "" {
		return
	}
	due := of.waiting[first]
	for id := range of.inPlay {
		task := taskKey{key.queue, id}
		is, was := r.tasks[task], before[task]
		switch {
		case is.group != key.name: // a stranger has finished the one of the group, and the ID is another task's
		case is.isFresh() && is.score > due && !alike(is.score, due):
			r.groupAmiss("%v at %v is in play in the group %q, due at %f, and %s waits, due at %f", task, at.span, key.name, is.score, first[dueDigits:], due)
		case was.isFresh() && is.leased() && was.dueAt() > due && !alike(was.dueAt(), due):
			r.groupAmiss("%v at %v was claimed, due at %f, and %s of the group %q waits, due at %f", task, at.span, was.dueAt(), first[dueDigits:], key.name, due)
		}
	}
}

// alike says whether two due times are the same: a member has whole microseconds, and so has what
// is put into play from there.
func alike(a, b float64) bool { return math.Abs(a-b) < 2e-6 }

// isFresh says whether no worker has had a task of a group that is to be handed out or waits, as
// far as its state field tells.
func (t task) isFresh() bool {
	return (t.queued || t.waits != 0) && t.field == (field{units: t.units, group: t.group, waits: t.waits})
}

// dueAt is when a task is due that is in the queue, or waits in its group.
func (t task) dueAt() float64 {
	if t.waits != 0 && !t.queued {
		return t.waits
	}
	return t.score
}

// inQueue returns a task that waits in its group as if it were in the queue.
func (t task) inQueue() task {
	if t.waits != 0 && !t.queued && !t.dead {
		t.queued, t.score, t.waits = true, t.waits, 0
	}
	if t.field == (field{group: t.group, had: t.had}) && t.group != "" { // a plain task has no field then
		t.kept = false
	}
	return t
}
