package taskloop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// fault is what happens to an exchange or an extension. The zero value is nothing.
type fault struct {
	request time.Duration // the time that it takes to the server
	reply   time.Duration // the time that the reply takes
	outcome redisexec.Outcome
	after   bool // the outcome is that of a reply that is lost: it is carried out
}

var (
	errFault     = errors.New("fault")
	unconnected  = fault{outcome: redisexec.NotSent}
	denied       = fault{outcome: redisexec.Rejected}
	replyIsLost  = fault{outcome: redisexec.Unknown, after: true}
	requestFails = fault{outcome: redisexec.Unknown}
)

// item is a task in a queue.
type item struct {
	store.Task
	due     time.Time // or, if it has a receipt, when its lease ends
	receipt string
	buried  string // why
}

// exchanged is an exchange as the server was sent it.
type exchanged struct {
	at      time.Time
	reports map[store.Settler][]string // the receipts and tasks
	claim   int
}

// fakeQueue is a Source in memory. Its time is that of the bubble.
type fakeQueue struct {
	lease     time.Duration
	latency   time.Duration // of each exchange and extension, half of it each way
	malformed string        // the task whose field is not the library's

	mu         sync.Mutex               // guards what follows
	hung       bool                     // it does not answer; the client gives up after 3 seconds
	late       map[string]time.Duration // of tasks that were claimed: for how long they had been due
	items      []*item                  // in order of age
	made       int                      // tasks that topUp has made
	receipts   int                      // issued so far
	changed    chan struct{}
	exchanges  []exchanged
	extensions []exchanged // likewise, all in reports[Finish]
	budgets    []time.Duration
	underWay   int // exchanges
	most       int // exchanges at once
	waits      int
	onExchange func(n int) fault // n is 1 for the first
	onExtend   func(n int) fault
	waitErr    error
}

func newQueue(lease time.Duration, ids ...string) *fakeQueue {
	q := &fakeQueue{
		lease: lease, changed: make(chan struct{}), late: map[string]time.Duration{},
	}
	q.add(ids...)
	return q
}

func numbered(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("t%d", i+1))
	}
	return ids
}

func (q *fakeQueue) add(ids ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range ids {
		q.items = append(q.items, &item{Task: store.Task{ID: id, Payload: []byte(id)}, due: time.Now()})
	}
	q.notify()
}

// notify is called with the mutex.
func (q *fakeQueue) notify() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// steal has another worker claim a task, whatever its lease.
func (q *fakeQueue) steal(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, i := range q.items {
		if i.ID == id {
			i.receipt, i.due = "another's", time.Now().Add(time.Hour)
		}
	}
}

// set changes the queue's behaviour.
func (q *fakeQueue) set(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
}

// left returns the IDs of the tasks in the queue, those that are buried with the reason.
func (q *fakeQueue) left() (ids []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, i := range q.items {
		ids = append(ids, i.ID+i.buried)
	}
	return ids
}

// sent returns the exchanges and extensions so far.
func (q *fakeQueue) sent() (exchanges, extensions []exchanged) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.exchanges), slices.Clone(q.extensions)
}

// atOnce is how many exchanges were under way at once.
func (q *fakeQueue) atOnce() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.most
}

// times returns when they were sent, counted from start.
func times(all []exchanged, start time.Time) (at []time.Duration) {
	for _, x := range all {
		at = append(at, x.at.Sub(start))
	}
	return at
}

func (q *fakeQueue) Start(job redisexec.Job) { go job.Run() }

// hangs is how long the client waits for an answer that does not come; 0 if it does.
func (q *fakeQueue) hangs() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hung {
		return 3 * time.Second
	}
	return 0
}

func (q *fakeQueue) Exchange(reports []Report, claim int) ([]ReportResult, ClaimResult) {
	f := q.beginExchange(reports, claim)
	if hangs := q.hangs(); hangs > 0 {
		f = fault{request: hangs, outcome: redisexec.Unknown}
	}
	defer q.endExchange()
	results, claimed := make([]ReportResult, len(reports)), ClaimResult{}
	time.Sleep(q.latency/2 + f.request)
	if f.outcome == redisexec.Done || f.after {
		for i, r := range reports {
			results[i].Answers = q.settle(r)
		}
		if claim > 0 {
			claimed = q.claim(claim)
		}
	}
	time.Sleep(q.latency/2 + f.reply)
	if f.outcome != redisexec.Done {
		for i := range results {
			results[i] = ReportResult{Outcome: f.outcome, Err: errFault}
		}
		claimed = ClaimResult{Outcome: f.outcome, Err: errFault}
	}
	return results, claimed
}

func (q *fakeQueue) beginExchange(reports []Report, claim int) (f fault) {
	q.mu.Lock()
	defer q.mu.Unlock()
	x := exchanged{at: time.Now(), reports: map[store.Settler][]string{}, claim: claim}
	for _, r := range reports {
		for _, d := range r.Items {
			x.reports[r.Settler] = append(x.reports[r.Settler], d.Receipt+" "+d.ID)
		}
	}
	q.exchanges = append(q.exchanges, x)
	q.underWay++
	q.most = max(q.most, q.underWay)
	if q.onExchange != nil {
		f = q.onExchange(len(q.exchanges))
	}
	return f
}

func (q *fakeQueue) endExchange() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.underWay--
}

func (q *fakeQueue) settle(r Report) (answers []store.Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range r.Items {
		at := slices.IndexFunc(q.items, func(i *item) bool { return i.ID == d.ID && i.receipt == d.Receipt })
		switch {
		case at < 0:
			answers = append(answers, q.stale(d.ID))
			continue
		case q.malformed == d.ID && r.Settler != store.ByBury:
			answers = append(answers, store.Malformed)
			continue
		}
		i := q.items[at]
		switch r.Settler {
		case store.ByExchange, store.ByDiscard:
			copy(q.items[1:at+1], q.items[:at]) // the oldest few, since the race detector looks at each that moves
			q.items = q.items[1:]
		case store.ByGiveBack:
			i.receipt, i.due = "", time.Now().Add(d.Disposition.Delay)
			if d.Disposition.Action == store.Release {
				i.Attempt--
			}
			if next := d.Disposition.Next; next != nil {
				i.due, i.Attempt, i.Payload = next.At, 0, []byte(next.Payload)
			}
		case store.ByBury:
			i.receipt, i.buried = "", " buried: "+d.Disposition.Reason
		}
		answers = append(answers, store.Accepted)
	}
	q.notify()
	return answers
}

func (q *fakeQueue) claim(n int) (c ClaimResult) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.receipts++
	c.Head.Off = time.Hour
	now := time.Now()
	c.Receipt = fmt.Sprintf("r%d", q.receipts)
	for _, i := range q.items {
		switch {
		case i.buried != "":
		case len(c.Tasks) == n || now.Before(i.due):
			c.Head.Off = min(c.Head.Off, max(i.due.Sub(now), 0))
			if len(c.Tasks) == n && c.Head.Off == 0 {
				return c // of many, as the race detector looks at each
			}
		default:
			q.late[i.ID] = max(q.late[i.ID], now.Sub(i.due))
			i.receipt, i.due = c.Receipt, now.Add(q.lease)
			i.Attempt++
			c.Tasks = append(c.Tasks, i.Task)
		}
	}
	return c
}

// latest returns for how long tasks had been due, at most, that were claimed.
func (q *fakeQueue) latest() (late time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range q.late {
		late = max(late, d)
	}
	return late
}

func (q *fakeQueue) Extend(ctx context.Context, items []store.Item) ReportResult {
	q.mu.Lock()
	x := exchanged{at: time.Now(), reports: map[store.Settler][]string{}}
	for _, d := range items {
		x.reports[store.ByExchange] = append(x.reports[store.ByExchange], d.Receipt+" "+d.ID)
	}
	q.extensions = append(q.extensions, x)
	until, _ := ctx.Deadline()
	q.budgets = append(q.budgets, time.Until(until))
	f := fault{}
	if q.onExtend != nil {
		f = q.onExtend(len(q.extensions))
	}
	q.mu.Unlock()
	if hangs := q.hangs(); hangs > 0 {
		f = fault{request: hangs, outcome: redisexec.Unknown}
	}
	if !sleep(ctx, q.latency/2+f.request) {
		return ReportResult{Outcome: redisexec.Abandoned, Err: ctx.Err()}
	}
	var r ReportResult
	if f.outcome == redisexec.Done || f.after {
		for _, d := range items {
			r.Answers = append(r.Answers, q.extend(d))
		}
	}
	switch {
	case !sleep(ctx, q.latency/2+f.reply):
		return ReportResult{Outcome: redisexec.Abandoned, Err: ctx.Err()}
	case f.outcome != redisexec.Done:
		return ReportResult{Outcome: f.outcome, Err: errFault}
	}
	return r
}

func (q *fakeQueue) extend(d store.Item) store.Answer {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, i := range q.items {
		if i.ID == d.ID && i.receipt == d.Receipt {
			i.due = time.Now().Add(q.lease)
			return store.Accepted
		}
	}
	return q.stale(d.ID)
}

// stale is the answer to a receipt that is not good. It is called with the mutex.
func (q *fakeQueue) stale(id string) store.Answer {
	if slices.ContainsFunc(q.items, func(i *item) bool { return i.ID == id }) {
		return store.Stale
	}
	return store.Gone
}

// cancel removes a task.
func (q *fakeQueue) cancel(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = slices.DeleteFunc(q.items, func(i *item) bool { return i.ID == id })
}

// sleep reports whether ctx has let it sleep for d.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (q *fakeQueue) Wait(ctx context.Context) error {
	q.mu.Lock()
	q.waits++
	q.mu.Unlock()
	for {
		due, changed, err := q.next()
		if hangs := q.hangs(); hangs > 0 { // the client looks at it again, and gives up
			sleep(ctx, hangs)
			return errFault
		}
		if err != nil || due <= 0 {
			return err
		}
		timer := time.NewTimer(due)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// next returns when something is due.
func (q *fakeQueue) next() (due time.Duration, changed chan struct{}, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	due = time.Hour
	for _, i := range q.items {
		if i.buried == "" {
			due = min(due, time.Until(i.due))
		}
	}
	return due, q.changed, q.waitErr
}
