package store

import (
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// Due is when a task is due, as scripts are given it.
type Due struct {
	sign byte  // '+' for a delay, '@' for a time
	us   int64 // from now, or Unix time
}

// DueIn returns a due time that counts from the server's clock, and DueAt one that does not. A
// delay below zero is none.
func DueIn(delay time.Duration) Due { return Due{'+', CeilMicros(max(delay, 0))} }

// DueAt returns a due time, rounded up to the microsecond.
func DueAt(at time.Time) Due { return Due{'@', at.Add(time.Microsecond - 1).UnixMicro()} }

// IsDelay reports whether it counts from the server's clock.
func (d Due) IsDelay() bool { return d.sign == '+' }

// Plus returns the time that is so many microseconds later.
func (d Due) Plus(us int64) Due { return Due{d.sign, d.us + us} }

// Seconds writes it without saying what it counts from.
func (d Due) Seconds() string { return Micros(d.us) }

func (d Due) text() string { return string(appendMicros([]byte{d.sign}, d.us)) }

// Draft is a task as a producer gives it: the root's Task.
type Draft struct {
	ID         string
	Kind       string
	Payload    []byte
	Header     map[string]string
	Delay      time.Duration
	At         time.Time
	Duplicates string // the policy, as enqueue.lua knows it; "" for the queue's
	Take       Take
	Group      string
	Expires    time.Time
}

// Take is units of an item that a task takes.
type Take struct {
	Item    string
	Units   int  // 0 if it takes none
	Restore bool // it has them whatever is left
}

// Enqueue returns the task as it is enqueued. It is a copy.
func (d *Draft) Enqueue() Enqueue {
	due := DueAt(d.At)
	if d.At.IsZero() {
		due = DueIn(d.Delay)
	}
	e := Enqueue{Due: due, ID: d.ID, Payload: Pack(d.Kind, d.Header, d.Expires, d.Payload), Duplicates: d.Duplicates, Group: d.Group}
	if d.Take.Units > 0 {
		take := d.Take
		e.Take = &take
	}
	return e
}

// Enqueue is a task as it is enqueued.
type Enqueue struct {
	Due        Due
	ID         string
	Payload    string // with kind and header: see Pack
	Duplicates string // as in a Draft
	Take       *Take  // nil if it takes nothing
	Group      string // "" for none
}

// Size returns how many bytes it has, about.
func (t *Enqueue) Size() int { return len(t.ID) + len(t.Payload) }

// Rules say which tasks one script can enqueue: those with the same ones.
func (t *Enqueue) Rules() Rules {
	return Rules{Duplicates: t.Duplicates, Takes: t.Take != nil, Grouped: t.Group != ""}
}

// Rules are what all tasks of a Batch have in common.
type Rules struct {
	Duplicates string // as in a Draft
	Takes      bool
	Grouped    bool
	Anyway     bool // however many tasks the queue has
}

// String tells it from others.
func (r Rules) String() string {
	text := r.Duplicates
	if r.Takes {
		text += ", takes"
	}
	if r.Grouped {
		text += ", grouped"
	}
	return text
}

// Batch is the arguments of enqueue.lua, take.lua or enqueue_group.lua: groups of tasks, each due
// so many microseconds after the one before it in its group, which take the same, and are of the
// same Group.
type Batch struct {
	rules    Rules
	args     []any
	apart    int64
	group    int    // the index in args of the group's number of IDs; 0 before the first group
	next     Due    // when a further task of the group is due
	take     Take   // what each of them takes
	of       string // the tasks' group
	payloads []any  // the group's, until it ends
	filled   bool   // whether one of them is not empty
}

// The policies for duplicates that Go code tells from others; put.lua has all.
const (
	Keep = "keep"
	Once = "once" // keeps out what was done within the retention, too
)

// NewBatch returns the arguments for about so many tasks, none yet: from when on delays
// count at the earliest, and how many microseconds tasks of a group are apart.
func (q *Queue) NewBatch(n int, r Rules, floor string, apart int64) *Batch {
	policy := r.Duplicates
	if policy == Once {
		policy += ":" + Duration(q.options.Retention)
	}
	format := strconv.FormatInt(apart, 10)
	if r.Takes || r.Grouped {
		format += "+"
	}
	if q.isBounded(r) {
		format += "<" + strconv.Itoa(q.options.MaxTasks)
	}
	return &Batch{rules: r, args: append(make([]any, 0, 9+2*n), policy, floor, format), apart: apart}
}

func (q *Queue) isBounded(r Rules) bool { return q.options.MaxTasks > 0 && !r.Anyway }

// Add adds a task, to the last group if it is due right then, and takes the same.
func (b *Batch) Add(t *Enqueue) {
	if b.group == 0 || t.Due != b.next || t.Take != nil && *t.Take != b.take || t.Group != b.of {
		b.addGroup(t)
	}
	b.next = t.Due.Plus(b.apart)
	b.args = append(b.args, t.ID)
	b.payloads = append(b.payloads, t.Payload)
	b.filled = b.filled || t.Payload != ""
}

// addGroup begins a group with the task's time, and what it takes.
func (b *Batch) addGroup(t *Enqueue) {
	b.endGroup()
	b.group = len(b.args) + 1
	b.args = append(b.args, t.Due.text(), nil, nil)
	b.take, b.of = Take{}, t.Group
	if t.Take != nil {
		b.take = *t.Take
	}
	if b.rules.Takes || b.rules.Grouped {
		restore := ""
		if b.take.Restore {
			restore = "1"
		}
		b.args = append(b.args, front(b.take, b.of), restore)
	}
}

// front returns what stands in front of the state field of a task that takes units or is in a
// group: see state.lua.
func front(take Take, group string) string {
	text := make([]byte, 0, 24+len(take.Item)+len(group))
	if take.Units > 0 {
		text = strconv.AppendInt(append(text, '*'), int64(take.Units), 10)
		text = strconv.AppendInt(append(text, ','), int64(len(take.Item)), 10)
		text = append(append(text, ':'), take.Item...)
	}
	if group != "" {
		text = strconv.AppendInt(append(text, '@'), int64(len(group)), 10)
		text = append(append(text, ':'), group...)
	}
	return string(text)
}

// endGroup writes the numbers of the last group, and its payloads.
func (b *Batch) endGroup() {
	if b.group == 0 {
		return
	}
	b.args[b.group], b.args[b.group+1] = len(b.payloads), 0
	if b.filled {
		b.args[b.group+1] = len(b.payloads)
		b.args = append(b.args, b.payloads...)
	}
	b.payloads, b.filled = b.payloads[:0], false
}

// arguments returns them, of all tasks that were added.
func (b *Batch) arguments() []any {
	b.endGroup()
	return b.args
}

// Restored is a task as Restore puts it into a queue.
type Restored struct {
	ID, Payload string // the payload with kind, header and end: see Pack
	At          Due    // when it is due, or has died
	Dead        bool
	Attempt     int
	Reason      string    // why it is dead, or its last error
	Failed      time.Time // when that was; zero for none
	Take        Take
	Group       string
}

// Size returns how many bytes it has, about.
func (t *Restored) Size() int { return len(t.ID) + len(t.Payload) + len(t.Reason) }

// Restore puts tasks into the queue as they were, [MaxGroup] at most.
func (q *Queue) Restore(tasks []Restored) redisexec.Request {
	args := append(make([]any, 0, 1+8*len(tasks)), Duration(q.options.Retention))
	for i := range tasks {
		t := &tasks[i]
		state, failed := StateScheduled, ""
		if t.Dead {
			state = StateDead
		}
		if !t.Failed.IsZero() {
			failed = DueAt(t.Failed).Seconds()
		}
		args = append(args, t.ID, t.At.Seconds(), int(state), t.Attempt, t.Payload, t.Reason, failed, front(t.Take, t.Group))
		if t.Take.Units > 0 || t.Group != "" {
			q.holds.Store(true)
		}
	}
	return q.replicated(q.scripts.Restore.Request(q.all, args...))
}
