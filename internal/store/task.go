package store

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// Task is a task as a claim hands it out.
type Task struct {
	ID      string
	Kind    string
	Payload []byte
	Header  map[string]string
	Score   float64   // its receipt
	Due     time.Time // when it became due
	Attempt int
	Take    Take      // what it holds
	Group   string    // that it is in; "" for none
	Expires time.Time // no handler gets it after that; zero for never
}

// Info is a task as a script shows it, in any state. Its Score is its place in a list: when it is
// due, when its lease ends, or when it died.
type Info struct {
	Task
	Omitted int    // the size of header and payload, or of the result, if they were left out
	Result  []byte // of one that is done, which has no payload
	Reason  string // of a dead letter, or the last error
	State   State  // StateAbsent if the script does not say it

	FailedAt, LeasedSince float64 // 0 if it has no last error, or is neither leased nor due behind a lease
	Worker                string  // that has it, or had it
}

// shown reads id, score, attempt, payload and story of a task in a state. The score of a dead
// letter may be any.
func (r *reader) shown(state State) Info {
	id, score := r.text(), r.anyScore()
	t := r.standing(id, r.part(), r.part(), state)
	t.Score, t.Due = score, TimeOf(score)
	r.story(&t)
	return t
}

// got reads score, attempt, payload, state and story of the task with an ID.
func (r *reader) got(id string) Info {
	score := r.score()
	attempt, payload := r.part(), r.part()
	t := r.standing(id, attempt, payload, State(r.between(0, int64(StateWaiting))))
	t.Score = score
	r.story(&t)
	return t
}

// standing returns a task in a state.
func (r *reader) standing(id string, attempt, payload any, state State) (t Info) {
	if result, ok := payload.(string); ok && state == StateDone { // which has a result where others have a payload
		if t = r.task(id, attempt, ""); result != "" {
			t.Result = []byte(result)
		}
	} else {
		t = r.task(id, attempt, payload)
	}
	t.State = state
	return t
}

// story reads what payload.lua says of a task: why it is dead or its last error, when that was,
// since when it is leased, and by which worker, or was.
func (r *reader) story(t *Info) {
	t.Reason = r.text()
	t.FailedAt, _ = r.maybeScore()
	t.LeasedSince, _ = r.maybeScore()
	t.Worker = r.text()
}

// task returns a task. A payload that was left out is a number: see payload.lua.
func (r *reader) task(id string, attempt, payload any) (t Info) {
	t.ID = id
	switch n := attempt.(type) {
	case int64:
		t.Attempt = int(n)
	case string: // what stands in front of its state field may be behind it
		var err error
		count := n
		if i := strings.IndexAny(n, "*@"); i >= 0 {
			count = n[:i]
			r.hanging(&t.Task, n[i:])
		}
		t.Attempt, err = strconv.Atoi(count)
		r.bad = r.bad || err != nil
	default:
		r.bad = true
	}
	switch p := payload.(type) {
	case string:
		t.Kind, t.Header, t.Expires, t.Payload = Unpack(p)
	case int64:
		t.Omitted = int(p)
		r.bad = r.bad || p < 1
	default:
		r.bad = true
	}
	return t
}

// hanging reads what stands in front of a state field: see state.lua.
func (r *reader) hanging(t *Task, front string) {
	if units, rest, takes := strings.Cut(front, ","); takes && front[0] == '*' {
		n, err := strconv.Atoi(units[1:])
		r.bad = r.bad || err != nil || n < 1
		t.Take.Units = n
		t.Take.Item, front = r.sized(rest)
	}
	if front != "" {
		t.Group, front = r.sized(front[1:])
	}
	r.bad = r.bad || front != ""
}

// sized reads a name behind its length, and returns what follows it.
func (r *reader) sized(text string) (name, rest string) {
	length, name, _ := strings.Cut(text, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(name) {
		r.bad = true
		return "", ""
	}
	return name[:n], name[n:]
}

// Answer is what a script says of one claimed task: of its lease, or of what was to become of it.
type Answer int64

// The answers.
const (
	Malformed Answer = iota - 1 // its field is not the library's
	Stale                       // the receipt is not good
	Accepted
	Gone       // likewise stale, and the ID is not in the queue and no dead letter
	TookOver   // of a task to be set aside: the waiting version has taken over instead
	Resultless // accepted, and the result was dropped
)

// IsAccepted reports whether the claim has ended as it was asked for, or by a waiting version.
func (a Answer) IsAccepted() bool { return a == Accepted || a >= TookOver }

// answer reads one answer.
func (r *reader) answer() Answer { return Answer(r.between(int64(Malformed), int64(Resultless))) }

// answers reads n answers.
func (r *reader) answers(n int) []Answer {
	answers := make([]Answer, n)
	for i := range answers {
		answers[i] = r.answer()
	}
	return answers
}

// done reads what says nothing if all of n tasks are accepted.
func (r *reader) done(n int) []Answer {
	if r.bad || len(r.parts) > 0 {
		return r.answers(n)
	}
	answers := make([]Answer, n)
	for i := range answers {
		answers[i] = Accepted
	}
	return answers
}

// Exchanged is the reply of exchange.lua.
type Exchanged struct {
	Answers []Answer // of the tasks that it was to finish
	More    bool     // there may be more that are due
	Lacks   bool     // among them one that only a script which is given all keys may clean up
	Limited bool     // pause or limits have kept some from being handed out
	Receipt string   // of all tasks
	Tasks   []Task
	Head    Head // of the other tasks
}

// DecodeExchange decodes the reply of exchange.lua, which claims tasks, and was to finish so many
// others. Of the claimed tasks the reply has the score of all, their IDs, the attempts unless all
// are first ones, the payloads unless all are empty, and when each was due, in one text. It also
// says whether there are more, has the answers and the next due time, how many clients are in line,
// and this one's place.
//
// It returns a call's part of a group's reply, which is decoded already, as it is.
func DecodeExchange(value any, finished int) (x Exchanged, err error) {
	if part, ok := value.(Exchanged); ok {
		return part, nil
	}
	r := newReader(value)
	more := r.int()
	x.More, x.Lacks, x.Limited, x.Receipt = more > 0, more == 2, more < 0, r.text()
	ids, attempts, payloads, dues := r.list(), r.list(), r.list(), r.text()
	answers := newReader(r.part())
	off := min(max(r.int(), 0), FarOff.Microseconds())
	x.Head = Head{Off: time.Duration(off) * time.Microsecond, Waiting: int(r.int()), Place: Place(r.int())}
	x.Tasks = exchanged(&r, x.Receipt, ids, attempts, payloads, dues)
	if x.Answers = answers.done(finished); r.err() != nil || answers.err() != nil {
		return Exchanged{}, redisexec.Unexpected(value)
	}
	return x, nil
}

// exchanged returns the tasks that an exchange has claimed.
func exchanged(r *reader, receipt string, ids, attempts, payloads []any, dues string) []Task {
	if len(ids) == 0 {
		return nil
	}
	score, ok := parseScore(receipt)
	if !ok || math.IsInf(score, 0) || len(attempts) > 0 && len(attempts) != len(ids) || len(payloads) > 0 && len(payloads) != len(ids) {
		r.bad = true
		return nil
	}
	tasks := make([]Task, len(ids))
	for i := range tasks {
		id, isText := ids[i].(string)
		var attempt, payload any = int64(1), ""
		if len(attempts) > 0 {
			attempt = attempts[i]
		}
		if len(payloads) > 0 {
			payload = payloads[i]
		}
		var word string
		word, dues, _ = strings.Cut(dues, " ")
		due, isScore := parseScore(word)
		t := r.task(id, attempt, payload)
		t.Score, t.Due = score, TimeOf(due)
		r.bad = r.bad || !isText || !isScore || math.IsInf(due, 0) || t.Omitted > 0
		tasks[i] = t.Task
	}
	r.bad = r.bad || dues != ""
	return tasks
}

// Cut returns the first n tasks at most, and leaves the others.
func (x *Exchanged) Cut(n int) Exchanged {
	first, n := *x, min(n, len(x.Tasks))
	first.Tasks, x.Tasks = x.Tasks[:n:n], x.Tasks[n:]
	return first
}

// The outcomes of an enqueued task, as enqueue.lua counts them.
const firstOutcome, lastOutcome = 1, 10

// The outcomes of tasks that take units, or are in groups. The task of an ID to which OtherTake
// applies holds nothing, or units of another item; that of OtherGroup is in no group, or in another
// one.
const (
	Added      = 1
	SoldOut    = 6
	OtherTake  = 7
	OtherGroup = 8
	Full       = 9  // as is the queue: WithMaxTasks
	TooMany    = 10 // likewise, with the others of the script: alone it would fit
)

// AppendOutcomes decodes the time from which the delays of the batch's next script count at the
// earliest, and the outcomes of n tasks: none if all were added.
func AppendOutcomes[O ~int](to []O, value any, n int) (outcomes []O, floor string, err error) {
	r := newReader(value)
	floor, outcomes = r.text(), to
	if score, ok := parseScore(floor); !ok || math.IsInf(score, 0) {
		r.bad = true
	}
	allAdded := !r.more()
	for range n {
		outcome := O(firstOutcome)
		if !allAdded {
			outcome = O(r.between(firstOutcome, lastOutcome))
		}
		outcomes = append(outcomes, outcome)
	}
	if err := r.err(); err != nil {
		return to, "", err
	}
	return outcomes, floor, nil
}
