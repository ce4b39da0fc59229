package store

import "time"

// Due is when a task is due, as scripts are given it.
type Due struct {
	sign byte  // '+' for a delay, '@' for a time
	us   int64 // from now, or Unix time
}

// DueIn returns a due time that counts from the server's clock, and DueAt one that does not.
func DueIn(delay time.Duration) Due { return Due{'+', CeilMicros(delay)} }

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
	ID      string
	Kind    string
	Payload []byte
	Header  map[string]string
	Delay   time.Duration
	At      time.Time
}

// Enqueue returns the task as it is enqueued. It is a copy.
func (d *Draft) Enqueue() Enqueue {
	due := DueAt(d.At)
	if d.At.IsZero() {
		due = DueIn(d.Delay)
	}
	return Enqueue{Due: due, ID: d.ID, Payload: Pack(d.Kind, d.Header, d.Payload)}
}

// Enqueue is a task as it is enqueued.
type Enqueue struct {
	Due     Due
	ID      string
	Payload string // with kind and header: see Pack
}

// Size returns how many bytes it has, about.
func (t Enqueue) Size() int { return len(t.ID) + len(t.Payload) }

// Batch is the arguments of enqueue.lua: groups of tasks, each due so many microseconds after the
// one before it in its group.
type Batch struct {
	remembers bool // the policy asks for what is done
	args      []any
	apart     int64
	group     int   // the index in args of the group's number of IDs; 0 before the first group
	next      Due   // when a further task of the group is due
	payloads  []any // the group's, until it ends
	filled    bool  // whether one of them is not empty
}

// Policies for duplicates.
const (
	Keep = "keep"
	Once = "once" // keeps out what was done within the retention, too
)

// NewBatch returns the arguments for about so many tasks, none yet: the policy for duplicates, from
// when on delays count at the earliest, and how many microseconds tasks of a group are apart.
func (q *Queue) NewBatch(n int, policy, floor string, apart int64) *Batch {
	remembers := policy == Once
	if remembers {
		policy += ":" + Duration(q.options.Retention)
	}
	return &Batch{remembers: remembers, args: append(make([]any, 0, 6+2*n), policy, floor, apart), apart: apart}
}

// Add adds a task, to the last group if it is due right then.
func (a *Batch) Add(t Enqueue) {
	if a.group == 0 || t.Due != a.next {
		a.endGroup()
		a.group = len(a.args) + 1
		a.args = append(a.args, t.Due.text(), nil, nil)
	}
	a.next = t.Due.Plus(a.apart)
	a.args = append(a.args, t.ID)
	a.payloads = append(a.payloads, t.Payload)
	a.filled = a.filled || t.Payload != ""
}

// endGroup writes the numbers of the last group, and its payloads.
func (a *Batch) endGroup() {
	if a.group == 0 {
		return
	}
	a.args[a.group], a.args[a.group+1] = len(a.payloads), 0
	if a.filled {
		a.args[a.group+1] = len(a.payloads)
		a.args = append(a.args, a.payloads...)
	}
	a.payloads, a.filled = a.payloads[:0], false
}

// arguments returns them, of all tasks that were added.
func (a *Batch) arguments() []any {
	a.endGroup()
	return a.args
}
