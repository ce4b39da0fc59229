package sluice

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// chunk is the most tasks that one script handles. Larger batches are split.
	chunk = 250
	// chunkBytes is the most payload that one enqueueing script is given, unless
	// a single payload is larger. It keeps scripts short, as chunk does.
	chunkBytes = 1 << 20
	// maxAttempt is the largest number of attempts that a task's field holds.
	maxAttempt = 999_999_999
)

// lastTime is the latest due time that is accepted.
var lastTime = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// Queue is a delayed task queue. It is safe for concurrent use, by any number of
// processes. It holds no resources but, while somebody is in Wait and for five
// seconds after, a goroutine and a pub/sub connection.
//
// A task is scheduled until its due time has come by the server's clock, then
// due. A claimed task is leased: it is due again by itself when the lease ends.
// The score of an Entry is its receipt: an operation on an entry does something
// only while the task still has that score.
//
// Where a doc below says nothing else, an error other than ErrUnknown means that
// nothing was changed, and an operation returns when its context ends.
type Queue struct {
	door    *door
	options queueOptions
	name    string
	keys    []any // queue, tasks, dead letters
	channel string
	watcher watcher
}

// Task is what a producer puts in.
type Task struct {
	// ID names the task within its queue: 1 to 512 bytes.
	ID string
	// Payload is handed to whoever gets the task. Optional.
	Payload []byte
	// Delay is the time from now, by the server's clock, until the task is due.
	Delay time.Duration
	// At is when the task is due, instead of Delay. It is the one time that
	// comes from the caller's clock.
	At time.Time
}

// Entry is a task as it stands in the queue.
type Entry struct {
	ID      string
	Payload []byte
	// Score is when the task is due or, once claimed, when its lease ends, in
	// Unix seconds by the server's clock. It is the receipt.
	Score float64
	// Attempt is how many times the task has been claimed.
	Attempt int
}

// Time is Score as a time, to the microsecond.
func (e Entry) Time() time.Time {
	seconds, fraction := math.Modf(min(max(e.Score, -1e11), 1e11))
	return time.Unix(int64(seconds), int64(math.Round(fraction*1e6))*1000)
}

// Outcome is what Enqueue did with a task.
type Outcome int

const (
	// Added: the ID was not in the queue, or among the dead letters.
	Added Outcome = iota + 1
	// Updated: the task has the new due time and payload, and no attempts.
	Updated
	// Kept: the task was left as it is, as the duplicate policy says.
	Kept
	// Deferred: the task is leased. The new version waits, and takes its place
	// when the lease's holder finishes or gives up, so that one ID is never
	// worked on twice at once. Should the task's lease run out, the new version
	// is what is handed out next.
	Deferred
)

var outcomes = [...]string{"", "added", "updated", "kept", "deferred"}

func (o Outcome) String() string {
	if o < Added || o > Deferred {
		return "unknown"
	}
	return outcomes[o]
}

// Stats is how a queue stands.
type Stats struct {
	// Due is how many tasks somebody may take now, or would set aside.
	Due int64
	// Scheduled is how many are due later, leased ones included.
	Scheduled int64
	// Dead is how many are among the dead letters.
	Dead int64
	// OldestDue is for how long the first due task has been due.
	OldestDue time.Duration
	// NextDue is when the first scheduled task is due, or its lease ends, by the
	// server's clock. Zero if there is none.
	NextDue time.Time
}

// NewQueue returns the named queue on rdb, which stays the caller's to close. It
// does no I/O. The error is ErrInvalid.
func NewQueue(rdb redis.UniversalClient, name string, opts ...QueueOption) (*Queue, error) {
	if isNil(rdb) {
		return nil, invalid("new queue", "nil client")
	}
	options, err := queueOptions{prefix: "Queue:", maxAttempts: 25, poll: time.Second, maxPayload: 1 << 20}.with(opts)
	if err != nil {
		return nil, fmt.Errorf("sluice: new queue: %w", err)
	}
	key, err := keyOf(options.prefix, name)
	if err != nil {
		return nil, fmt.Errorf("sluice: new queue: %w", err)
	}
	q := &Queue{
		door: newDoor(rdb), options: options, name: name,
		keys: []any{key, companion(key, ":tasks"), companion(key, ":dead")}, channel: companion(key, ":wake"),
	}
	q.watcher = watcher{queue: q, wake: newHub(rdb)}
	return q, nil
}

// Enqueue puts a task in, and says what became of it; see WithDuplicates for an
// ID that is there already. A dead letter of that ID is replaced.
//
// After ErrUnknown it may be called again, as it was: the ID is in the queue once
// in any case. But if the task was due at once, somebody may have finished it in
// between, and will be handed it again; and a copy that was held up on its way may
// come after a newer version, and replace that.
func (q *Queue) Enqueue(ctx context.Context, t Task) (Outcome, error) {
	outcomes, err := q.enqueue(ctx, "enqueue", []Task{t})
	if err != nil {
		return 0, err
	}
	return outcomes[0], nil
}

// EnqueueBatch puts tasks in, in the order given; those with the same Delay or At
// keep that order, by microseconds. An ID may occur more than once.
//
// Any number will do: up to 250 tasks, or a megabyte of payload, go in atomically
// at a time. Should one of these chunks fail, the outcomes of those before are
// returned beside the error, and those after have not been sent. Of the failed
// chunk itself nothing was done, unless the error is ErrUnknown: then all of it
// was, or nothing.
func (q *Queue) EnqueueBatch(ctx context.Context, ts []Task) ([]Outcome, error) {
	return q.enqueue(ctx, "enqueue batch", ts)
}

func (q *Queue) enqueue(ctx context.Context, op string, ts []Task) ([]Outcome, error) {
	if err := q.check(op, ctx); err != nil {
		return nil, err
	}
	for i := range ts {
		if err := q.checkTask(&ts[i]); err != nil {
			return nil, fmt.Errorf("sluice: %s: %w", op, err)
		}
	}
	done := make([]Outcome, 0, len(ts))
	same := map[due]int{}
	for len(ts) > 0 {
		n, args := q.pack(ts, same)
		a, err := q.run(ctx, scriptEnqueue.call(q.keys, args...))
		if err == nil {
			done, err = appendOutcomes(done, a.reply, n)
		}
		if err != nil {
			return done, wrap(op, q.name, err)
		}
		ts = ts[n:]
	}
	return done, nil
}

// due is when a task is due, as the script is told it.
type due struct {
	sign byte  // '+' for a delay, '@' for a time
	us   int64 // from now, or Unix time
}

// pack makes the arguments for the first chunk of ts. same counts the tasks of
// the batch with the same due time, which are kept apart by a microsecond each.
func (q *Queue) pack(ts []Task, same map[due]int) (n int, args []any) {
	args = append(make([]any, 0, 2+3*min(len(ts), chunk)), policies[q.options.duplicates], q.channel)
	size := 0
	for n < len(ts) && n < chunk && (n == 0 || size+len(ts[n].Payload) <= chunkBytes) {
		t := &ts[n]
		size += len(t.Payload)
		when := due{'+', ceilMicros(t.Delay)}
		if !t.At.IsZero() {
			when = due{'@', t.At.Add(time.Microsecond - 1).UnixMicro()}
		}
		after := int64(same[when])
		if len(ts) > 1 || len(same) > 0 {
			same[when]++
		}
		// The payload is copied: the caller may use it again when its context
		// has ended, while the command is still under way.
		args = append(args, t.ID, string(appendMicros([]byte{when.sign}, when.us+after)), string(t.Payload))
		n++
	}
	return n, args
}

var policies = [...]string{Replace: "replace", Keep: "keep", Earliest: "earliest", Latest: "latest"}

func (q *Queue) checkTask(t *Task) error {
	switch {
	case len(t.ID) == 0 || len(t.ID) > maxName:
		return fmt.Errorf("%w: a task ID has 1 to %d bytes", ErrInvalid, maxName)
	case len(t.Payload) > q.options.maxPayload:
		return fmt.Errorf("%w: payload of %d bytes, %d are allowed", ErrInvalid, len(t.Payload), q.options.maxPayload)
	case t.Delay != 0 && !t.At.IsZero():
		return fmt.Errorf("%w: both Delay and At", ErrInvalid)
	case !t.At.IsZero() && (t.At.Unix() < 0 || t.At.After(lastTime)):
		return fmt.Errorf("%w: At before 1970 or after %d", ErrInvalid, lastTime.Year())
	}
	return checkDelay(t.Delay)
}

func checkDelay(d time.Duration) error {
	if d < 0 || d > longest {
		return fmt.Errorf("%w: delay must be 0 to 100 years", ErrInvalid)
	}
	return nil
}

// Claim leases up to n due tasks, earliest first: they are the caller's until
// the lease ends. What becomes of a task is then said with Dequeue, Retry, Release
// or Bury; a task of which nothing is said is due again when its lease ends.
// Nothing due is no error.
//
// Tasks that were claimed as often as WithMaxAttempts allows go to the dead
// letters instead, as do entries that are not the library's; fewer than n may
// be returned then. More than 250, or a megabyte of payload, are claimed in
// several steps; should one fail, those claimed before are returned beside the
// error. After ErrUnknown tasks may
// be leased to nobody: they are due again when the lease ends.
func (q *Queue) Claim(ctx context.Context, n int, lease time.Duration) ([]Entry, error) {
	if err := checkDuration("lease", lease); err != nil {
		return nil, fmt.Errorf("sluice: claim: %w", err)
	}
	return take(ctx, q, "claim", n, func(n, _ int) (call, decoder[Entry]) {
		return q.claim(n, lease), decodeClaimed
	})
}

func (q *Queue) claim(n int, lease time.Duration) call {
	return scriptClaim.call(q.keys, n, micros(ceilMicros(lease)), q.options.maxAttempts)
}

// Pop takes up to n due tasks out of the queue, earliest first. A task is handed
// to one caller at most, and lost if that one dies: use Claim where that matters.
// For more than 250 see Claim. After ErrUnknown up to n tasks may be lost.
func (q *Queue) Pop(ctx context.Context, n int) ([]Entry, error) {
	return take(ctx, q, "pop", n, func(n, _ int) (call, decoder[Entry]) {
		return scriptPop.call(q.keys, n), decodeEntries
	})
}

// Peek looks at up to n due tasks, earliest first. It changes nothing, and nothing
// keeps others from taking them: Dequeue says so. It reads on past what Claim and
// Pop would set aside, so that a queue which is only ever peeked at should have
// somebody who Claims now and then.
func (q *Queue) Peek(ctx context.Context, n int) ([]Entry, error) {
	return take(ctx, q, "peek", n, func(n, skip int) (call, decoder[Entry]) {
		return scriptPeek.call(q.keys[:2], n, skip), decodeEntries
	})
}

// take runs a script that hands out entries until there are n, or no more. The
// script is told how many it has looked at before.
func take[E any](ctx context.Context, q *Queue, op string, n int, build func(n, skip int) (call, decoder[E])) ([]E, error) {
	if err := q.check(op, ctx); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, invalid(op, "n must be at least 1")
	}
	var taken []E
	for skip := 0; len(taken) < n; {
		c, decode := build(min(n-len(taken), chunk), skip)
		a, err := q.run(ctx, c)
		if err != nil {
			return taken, wrap(op, q.name, err)
		}
		looked, entries, err := decode(a.reply)
		taken = append(taken, entries...)
		if err != nil {
			return taken, wrap(op, q.name, err)
		}
		if looked == 0 {
			break
		}
		skip += looked
	}
	return taken, nil
}

// Dequeue finishes tasks: it removes each whose receipt is still good. Where
// Enqueue has Deferred a new version, that one takes the task's place.
//
// A *StaleError (ErrStale) names the tasks whose receipt is not: their lease ran
// out and they were handed to somebody else, or they were cancelled or moved. The
// others were finished. ErrUnknown: some may or may not have been; calling again
// is safe, and one that had been is stale then. Up to 250 are finished atomically
// at a time; after an error those of earlier steps have been, but for those that a
// *StaleError beside it names.
func (q *Queue) Dequeue(ctx context.Context, es ...Entry) error {
	return q.finish(ctx, "dequeue", es, q.dequeue)
}

// dequeue takes two arguments per task: ID, score.
func (q *Queue) dequeue(receipts []any) call {
	return scriptDequeue.call(q.keys, append([]any{q.channel}, receipts...)...)
}

// Retry gives a task back, due again after delay; the attempt counts. Where a new
// version was Deferred, that one takes its place instead, at its own time.
// ErrStale and ErrUnknown as for Dequeue.
func (q *Queue) Retry(ctx context.Context, e Entry, delay time.Duration) error {
	if err := checkDelay(delay); err != nil {
		return fmt.Errorf("sluice: retry: %w", err)
	}
	return q.finish(ctx, "retry", []Entry{e}, func(receipts []any) call {
		return q.giveBack(append(receipts, micros(ceilMicros(delay)), 0))
	})
}

// Release gives tasks back that were not begun: they are due now, and the attempt
// does not count. Where a new version was Deferred, that one takes its place.
// ErrStale and ErrUnknown as for Dequeue.
func (q *Queue) Release(ctx context.Context, es ...Entry) error {
	return q.finish(ctx, "release", es, func(receipts []any) call {
		args := make([]any, 0, 2*len(receipts))
		for i := 0; i < len(receipts); i += 2 {
			args = append(args, receipts[i], receipts[i+1], "0", 1)
		}
		return q.giveBack(args)
	})
}

// giveBack takes four arguments per task: ID, score, delay, attempts to take off.
func (q *Queue) giveBack(back []any) call {
	return scriptGiveBack.call(q.keys, append([]any{q.channel}, back...)...)
}

// finish runs a script that ends holds, and sorts out its verdicts.
func (q *Queue) finish(ctx context.Context, op string, es []Entry, build func(receipts []any) call) error {
	if err := q.check(op, ctx); err != nil {
		return err
	}
	for _, e := range es {
		if err := checkReceipt(e); err != nil {
			return fmt.Errorf("sluice: %s: %w", op, err)
		}
	}
	var stale []string
	var verdict error
	for part := range slices.Chunk(es, chunk) {
		c := build(receipts(part))
		a, err := q.run(ctx, c)
		var codes []int64
		if err == nil {
			codes, err = integers(a.reply, len(part))
		}
		if err != nil {
			verdict = err
			break
		}
		for i, code := range codes {
			switch {
			case code == codeDone:
			case code == codeCorrupt:
				verdict = ErrCorrupt
			case a.unsure:
				verdict = fmt.Errorf("%w: a reply was lost, and the receipt is stale now", ErrUnknown)
			default:
				stale = append(stale, part[i].ID)
			}
		}
	}
	switch {
	case stale == nil:
		return wrap(op, q.name, verdict)
	case verdict == nil:
		return wrap(op, q.name, &StaleError{IDs: stale})
	default:
		return wrap(op, q.name, fmt.Errorf("%w; %w", verdict, &StaleError{IDs: stale}))
	}
}

// What dequeue.lua, giveback.lua and bury.lua say of a task.
const (
	codeCorrupt = -1
	codeDone    = 1
)

// Extend gives a claimed task a new lease from now, and returns the entry with
// its new receipt; the old one is used up. It is the heartbeat of long work.
//
// ErrStale: the task isn't the caller's any more; stop working on it. ErrUnknown:
// the lease may have been extended with a receipt that got lost. The task is then
// due again when that lease ends, and nothing can be said of it before.
func (q *Queue) Extend(ctx context.Context, e Entry, lease time.Duration) (Entry, error) {
	if err := q.check("extend", ctx); err != nil {
		return Entry{}, err
	}
	err := checkReceipt(e)
	if err == nil {
		err = checkDuration("lease", lease)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("sluice: extend: %w", err)
	}
	a, err := q.run(ctx, q.heartbeat(lease, receipts([]Entry{e})...))
	if err == nil {
		e.Score, err = decodeHeartbeat(a)
	}
	if err != nil {
		return Entry{}, wrap("extend", q.name, err)
	}
	return e, nil
}

func (q *Queue) heartbeat(lease time.Duration, receipt ...any) call {
	return scriptHeartbeat.call(q.keys, append(receipt, micros(ceilMicros(lease)))...)
}

// Cancel removes a task whatever its state, and says whether there was one. Who
// holds a lease on it learns so by ErrStale. After ErrUnknown it may be called
// again.
func (q *Queue) Cancel(ctx context.Context, id string) (bool, error) {
	return q.byID(ctx, "cancel", id, func() call {
		return scriptCancel.call(q.keys, id)
	})
}

// Reschedule makes a task due after delay, and says whether there was one; dead
// letters don't count. The payload and the attempts stay. A leased task is not
// taken from its holder: it will be due again at that time, as a new one, once the
// holder has finished (see Deferred). After ErrUnknown it may be called again.
func (q *Queue) Reschedule(ctx context.Context, id string, delay time.Duration) (bool, error) {
	if err := checkDelay(delay); err != nil {
		return false, fmt.Errorf("sluice: reschedule: %w", err)
	}
	return q.byID(ctx, "reschedule", id, func() call {
		return scriptReschedule.call(q.keys[:2], id, micros(ceilMicros(delay)), q.channel)
	})
}

// byID runs a script on one task that answers 1 for done and 0 for no such task.
func (q *Queue) byID(ctx context.Context, op, id string, build func() call) (bool, error) {
	if err := q.check(op, ctx); err != nil {
		return false, err
	}
	if id == "" {
		return false, invalid(op, "empty task ID")
	}
	a, err := q.run(ctx, build())
	if err != nil {
		return false, wrap(op, q.name, err)
	}
	code, err := integer(a.reply)
	if err == nil && code == codeCorrupt {
		err = ErrCorrupt
	}
	return code == codeDone, wrap(op, q.name, err)
}

// Get returns a task, whatever its state; of a dead letter, Score is the time of
// its death; of a leased one for which a new version waits, Payload is already the
// new one's. ErrNotFound if there is none.
func (q *Queue) Get(ctx context.Context, id string) (Entry, error) {
	if err := q.check("get", ctx); err != nil {
		return Entry{}, err
	}
	if id == "" {
		return Entry{}, invalid("get", "empty task ID")
	}
	a, err := q.run(ctx, scriptGet.call(q.keys, id))
	if err != nil {
		return Entry{}, wrap("get", q.name, err)
	}
	e, err := decodeGet(id, a.reply)
	return e, wrap("get", q.name, err)
}

// Stats counts the queue's tasks.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	if err := q.check("stats", ctx); err != nil {
		return Stats{}, err
	}
	a, err := q.run(ctx, scriptStats.call(q.keys))
	if err != nil {
		return Stats{}, wrap("stats", q.name, err)
	}
	s, err := decodeStats(a.reply)
	return s, wrap("stats", q.name, err)
}

// Purge removes every task and dead letter. Who holds a lease learns so by
// ErrStale. After ErrUnknown it may be called again.
func (q *Queue) Purge(ctx context.Context) error {
	if err := q.check("purge", ctx); err != nil {
		return err
	}
	_, err := q.run(ctx, scriptPurge.call(q.keys))
	return wrap("purge", q.name, err)
}

// Format prints the queue's name, whatever the verb: the fields lead to the client's
// password.
func (q *Queue) Format(f fmt.State, _ rune) {
	name := ""
	if q != nil {
		name = q.name
	}
	_, _ = fmt.Fprintf(f, "sluice.Queue(%q)", name)
}

func (q *Queue) run(ctx context.Context, c call) (answer, error) {
	return q.door.run(ctx, c)
}

func (q *Queue) check(op string, ctx context.Context) error {
	if q == nil || q.door == nil {
		return invalid(op, "Queue not made by NewQueue")
	}
	if ctx == nil {
		return invalid(op, "nil context")
	}
	return nil
}

func checkReceipt(e Entry) error {
	if e.ID == "" || math.IsNaN(e.Score) || math.IsInf(e.Score, 0) {
		return fmt.Errorf("%w: not an entry from the queue", ErrInvalid)
	}
	return nil
}

func receipts(es []Entry) []any {
	args := make([]any, 0, 2*len(es)+1)
	for _, e := range es {
		args = append(args, e.ID, strconv.FormatFloat(e.Score, 'g', -1, 64))
	}
	return args
}

// ceilMicros rounds up, so that nothing is due too early.
func ceilMicros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// micros writes microseconds as decimal seconds.
func micros(us int64) string { return string(appendMicros(nil, us)) }

func appendMicros(b []byte, us int64) []byte {
	b = strconv.AppendInt(b, us/1e6, 10)
	point := len(b)
	b = strconv.AppendInt(b, 1e6+us%1e6, 10)
	b[point] = '.'
	return b
}
