package queues

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/taskloop"
	"github.com/sluice-go/sluice/internal/watch"
)

// Worker is a run of a worker on a queue. It is the taskloop.Source of the queue: it builds the
// requests of the loop and decodes the replies. It is also the loop's taskloop.Policy: its Handler
// is the worker's, around which it is the layer for periodic tasks.
type Worker struct {
	taskloop.Handler
	Queue    *Queue
	Loop     taskloop.Queue // how the loop is to work; Run fills in Client, Source and Policy
	Label    string
	Limits   store.Limits // that the queue is to have if none have been set; zero for none
	Periodic []Periodic   // with IDs that differ

	periodic
	presence
	limit limit
}

// Run has workers work in one loop, until ctx ends: see taskloop.Run.
func Run(ctx context.Context, workers []*Worker, c taskloop.Config) *taskloop.Unfinished {
	var ends []func()
	defer func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}()
	canceled := notify.NewMessages()
	c.Canceled = canceled
	for _, w := range workers {
		w.introduce()
		w.startPeriodic()
		w.Loop.Client, w.Loop.Source, w.Loop.Policy = w.Queue.client, w, w
		c.Queues = append(c.Queues, w.Loop)
		if n, channel := w.Queue.client.Notifier, w.Queue.Store.CanceledChannel(); ctx.Err() == nil {
			listener := n.JoinMessages(canceled, channel)
			ends = append(ends, func() { n.Leave(channel, listener) })
		}
		if len(w.tasks) > 0 {
			ends = append(ends, background.Start(ctx, w.keepPeriodic))
		}
	}
	if ctx.Err() == nil {
		ends = append(ends, startPresence(ctx, workers))
	}
	return taskloop.Run(ctx, c)
}

// Handle calls the handler, except for an occurrence of a periodic task that it is not to have.
func (w *Worker) Handle(ctx context.Context, t store.Task) (err error) {
	o, ok := occurrenceIn(t.ID, t.Header)
	switch task := w.tasks[t.ID]; {
	case ok:
		if t, err = w.admit(t, o); err != nil {
			return err
		}
	case task != nil:
		task.tell(errOtherTask)
	}
	return w.Handler.Handle(ctx, t)
}

// Decide says what a handler's error means for its task, and adds the next occurrence of a periodic
// one.
func (w *Worker) Decide(ctx context.Context, t store.Task, err error) store.Disposition {
	if errors.Is(context.Cause(ctx), taskloop.ErrStuck) { // whatever it returns at last: another attempt has begun, perhaps
		return store.Disposition{Action: store.Release}
	}
	if own, ok := err.(*notHandledError); ok { //nolint:errorlint // never wrapped
		return own.disposition
	}
	return w.conclude(t, w.Handler.Decide(ctx, t, err))
}

// Exchange sends reports and a claim in one pipeline, and before them the queue's limits, if those are
// to be seen to. Tasks are finished by the script that claims. If the server rejects that, there is one
// script for each: to be denied what claims is no reason not to finish.
//
// Nothing bounds it here: the run loop gives up the wait for it.
func (w *Worker) Exchange(reports []taskloop.Report, claim int) (results []taskloop.ReportResult, claimed taskloop.ClaimResult) {
	q, apart := w.Queue, reports
	var finish []store.Item // the tasks of the first report, if the claim's script finishes them
	if claim > 0 && len(reports) > 0 && reports[0].Settler == store.ByExchange {
		finish, apart = reports[0].Items, reports[1:]
	}
	requests := make([]redisexec.Request, 0, len(reports)+2)
	limits := claim > 0 && w.limit.isDue(w.Limits)
	if limits {
		requests = append(requests, q.Store.LimitIfUnset(w.Limits).InFull()) // else it came behind the claim where that alone is known
	}
	for _, r := range apart {
		requests = append(requests, q.Store.Report(r.Items))
	}
	claiming := func(finish []store.Item) redisexec.Request {
		return q.claiming(finish, claim, w.Loop.Lease, w.saying.ID)
	}
	if claim > 0 {
		requests = append(requests, claiming(finish))
	}
	defer q.Executor.Suspect()()
	mark, sent := q.watcher.Mark(), time.Now()
	answers := q.Executor.SendAll(context.Background(), requests)
	if limits {
		w.limit.note(answers[0], w.Loop.Log)
		answers = answers[1:]
	}
	if last := len(answers) - 1; finish != nil && answers[last].Outcome == redisexec.Rejected {
		two := q.Executor.SendAll(context.Background(), []redisexec.Request{q.Store.Report(finish), claiming(nil)})
		answers = append(slices.Insert(answers[:last], 0, two[0]), two[1])
		finish, apart = nil, reports
	}
	results = make([]taskloop.ReportResult, 0, len(reports))
	if claim > 0 {
		answer := answers[len(answers)-1]
		claimed = taskloop.ClaimResult{Outcome: answer.Outcome, Err: answer.Err}
		if answer.Outcome == redisexec.Done {
			claimed.Exchanged, claimed.Err = store.DecodeExchange(answer.Value, len(finish))
			q.Store.Claimed(&claimed.Exchanged)
		}
	}
	if finish != nil {
		results = append(results, taskloop.ReportResult{Outcome: claimed.Outcome, Answers: claimed.Answers, Err: claimed.Err})
	}
	for i, r := range apart {
		results = append(results, decodeReport(answers[i], r.Items))
		if r.Settler == store.ByDiscard {
			q.soldOut.forget()
		}
	}
	switch {
	case claimed.Err != nil:
		claimed.Err = fmt.Errorf("claim: %w", claimed.Err)
	case claim > 0:
		q.watcher.Claimed(mark, sent, claimed.Head, len(claimed.Tasks) > 0)
	}
	return results, claimed
}

// decodeReport says what became of tasks whose leases were to end.
func decodeReport(answer redisexec.Result, items []store.Item) taskloop.ReportResult {
	result := taskloop.ReportResult{Outcome: answer.Outcome, Err: answer.Err}
	if answer.Outcome == redisexec.Done {
		result.Answers, result.Err = store.DecodeReport(answer.Value, items)
	}
	return result
}

// Extend extends leases by one script.
func (w *Worker) Extend(ctx context.Context, items []store.Item) taskloop.ReportResult {
	r := w.Queue.Store.Extend(w.Loop.Lease, items...)
	r.Bounded = true
	reply, err := w.Queue.Executor.Run(ctx, r)
	if err != nil {
		return taskloop.ReportResult{Outcome: redisexec.Unknown, Err: err}
	}
	result := taskloop.ReportResult{Outcome: redisexec.Done}
	result.Answers, result.Err = store.DecodeExtended(reply.Value, len(items))
	return result
}

// Wait waits until a task may be due.
func (w *Worker) Wait(ctx context.Context) error {
	if err := w.Queue.Wait(ctx); err != nil {
		return fmt.Errorf("sluice: wait %q: %w", w.Queue.Name, err)
	}
	return nil
}

// Start runs a job in a goroutine of the executor's.
func (w *Worker) Start(job redisexec.Job) { w.Queue.Executor.Start(job) }

const (
	// sayEvery is how often a worker says that it lives, at least, unless it polls less often, and
	// sayRarest how often then. Its word counts for sayLasts times as long: scripts that read it know
	// that this is three hours at most.
	sayEvery  = 15 * time.Second
	sayRarest = time.Hour
	// sayAgain is how soon it says so again while its queue has more to be dropped or forgotten:
	// presence.lua does that, in bounded steps.
	sayAgain = 250 * time.Millisecond
	sayLasts = 3
	// workerIDLength is how long an ID of a worker is: 40 random bits.
	workerIDLength = 8
	// limitEvery is how often a worker that claims looks whether its queue has limits.
	limitEvery = 50 * time.Second
	// sayFor bounds each try, and partFor the last one, for which Run waits.
	sayFor  = 5 * time.Second
	partFor = 250 * time.Millisecond
)

// Presence is a worker that runs, as it says of itself: the root's WorkerInfo.
type Presence struct {
	ID          string    `json:"id"`
	Label       string    `json:"label,omitempty"`
	Host        string    `json:"host"`
	Version     string    `json:"version"`
	PID         int       `json:"pid"`
	Concurrency int       `json:"concurrency"`
	Running     int       `json:"running"`
	Stuck       int       `json:"stuck"`
	Started     time.Time `json:"-"` // see saying
	Seen        time.Time `json:"-"`
}

// Workers returns the workers that run, of all processes.
func (q *Queue) Workers(ctx context.Context) ([]Presence, error) {
	return ask(ctx, q, q.Store.Workers(), func(value any) (workers []Presence, err error) {
		said, err := store.DecodeWorkers(value)
		for _, s := range said {
			if w, ok := presenceIn(s.Text, s.Until); ok { // the last that it has said: it does not know whether an earlier one was noted
				workers = append(slices.DeleteFunc(workers, func(other Presence) bool { return other.ID == w.ID }), w)
			}
		}
		return workers, err
	})
}

// saying is what a worker says of itself, as it is stored.
type saying struct {
	Presence
	Since  int64 `json:"started"` // Unix milliseconds
	Counts int64 `json:"counts"`  // for how many seconds
}

// presenceIn returns the worker that has said this, which counts until then, and whether it is one.
func presenceIn(text string, until float64) (w Presence, ok bool) {
	var s saying
	if json.Unmarshal([]byte(text), &s) != nil || s.ID == "" {
		return w, false
	}
	s.Started, s.Seen = time.UnixMilli(s.Since), store.TimeOf(until-float64(s.Counts))
	return s.Presence, true
}

// presence is what a worker that runs says of itself, with its ID. The script that takes it also
// keeps the counts of the queue, and drops and forgets what the queue's options do not allow.
type presence struct {
	saying saying
	before []string // what it has said, as long as that counts
}

// startPresence has workers seen: one goroutine for each client. What it returns ends them, and waits
// for that.
func startPresence(ctx context.Context, workers []*Worker) (stop func()) {
	byClient := map[*watch.Client]present{}
	for _, w := range workers {
		byClient[w.Queue.client] = append(byClient[w.Queue.client], w)
	}
	var keeps []func(ctx context.Context)
	for _, ws := range byClient {
		keeps = append(keeps, ws.keep)
	}
	return background.Start(ctx, keeps...)
}

// introduce gives a worker that begins to run its ID.
func (w *Worker) introduce() {
	host, _ := os.Hostname()
	self := Presence{ID: rand.Text()[:workerIDLength], Label: w.Label, Host: host, Version: libraryVersion(), PID: os.Getpid()}
	w.saying = saying{Presence: self, Since: time.Now().UnixMilli()}
}

// seen returns the request that says how the worker is, or that it has ended.
func (w *Worker) seen(hasEnded bool) redisexec.Request {
	said := ""
	if !hasEnded {
		c := w.Loop.Counters
		w.saying.Concurrency, w.saying.Running, w.saying.Stuck = int(c.Most.Load()), int(c.Running.Load()), int(c.Stuck.Load())
		text, _ := json.Marshal(w.saying) // of strings and numbers: it never fails
		said = string(text)
	}
	r := w.Queue.Store.Presence(w.saying.Counts, said, w.before)
	w.before = append(w.before, said)
	w.before = w.before[max(len(w.before)-sayLasts-1, 0):]
	return r
}

// present are workers of one client that run.
type present []*Worker

// keep has the workers seen until ctx ends, and then takes them off the list.
func (ws present) keep(ctx context.Context) {
	every := sayRarest
	for _, w := range ws {
		every = min(every, max(sayEvery, min(w.Queue.Options.Poll, sayRarest)))
	}
	for _, w := range ws {
		w.saying.Counts = int64(sayLasts * every / time.Second)
	}
	backoff.Sleep(ctx, backoff.Half(time.Second)) // a start has enough to do
	if ctx.Err() != nil {
		return
	}
	ws.seeToLimits(ctx)
	ws.compareLimits(ctx)
	for ctx.Err() == nil {
		next := time.Now().Add(every - backoff.Half(every/4)) // those of a fleet that has started at once come apart
		ws.seeToLimits(ctx)
		for left := ws.say(ctx, sayFor, false); len(left) > 0 && time.Until(next) > 0; left = left.say(ctx, sayFor, false) {
			backoff.Sleep(ctx, sayAgain)
		}
		backoff.Sleep(ctx, time.Until(next))
	}
	ws.say(context.WithoutCancel(ctx), partFor, true)
}

// limit is when a worker sees to the limits of its queue: it sets its own if none have been set, since a
// server that has lost its data has none.
type limit struct {
	seen atomic.Pointer[time.Time] // when they were seen to; nil if they were not
	told atomic.Bool               // that they could not be
}

// isDue reports whether a claim is to see to the limits first.
func (l *limit) isDue(own store.Limits) bool {
	seen := l.seen.Load()
	return own != store.Limits{} && (seen == nil || time.Since(*seen) > limitEvery)
}

// seeToLimits sees to the limits of those queues from which nothing is claimed, perhaps: a queue that is
// paused.
func (ws present) seeToLimits(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, sayFor)
	defer cancel()
	due := slices.DeleteFunc(slices.Clone(ws), func(w *Worker) bool { return !w.limit.isDue(w.Limits) })
	limited, results := due.askLimited(asking, func(w *Worker) redisexec.Request { return w.Queue.Store.LimitIfUnset(w.Limits) })
	for i, r := range results {
		if ctx.Err() == nil {
			limited[i].limit.note(r, limited[i].Loop.Log)
		}
	}
}

// note notes the answer. Where that is an error of the server it is tried again later, and else at once.
func (l *limit) note(r redisexec.Result, log *slog.Logger) {
	failed := r.Outcome != redisexec.Done
	if !failed || r.Outcome == redisexec.Rejected {
		now := time.Now()
		l.seen.Store(&now)
	}
	if told := l.told.Swap(failed && r.Outcome != redisexec.Rejected); failed && !told {
		log.Warn("sluice: worker cannot see to the queue's limits", slog.String("error", r.Err.Error()))
	}
	if r.Value == int64(1) {
		log.Info("sluice: the queue had no limits, and has those of this worker now")
	}
}

// compareLimits tells the log which queues have other limits than their workers say. A queue whose
// server does not answer, or denies that to its user, is left out.
func (ws present) compareLimits(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sayFor)
	defer cancel()
	limited, results := ws.askLimited(ctx, func(w *Worker) redisexec.Request { return w.Queue.Store.Stats() })
	for i, r := range results {
		w := limited[i]
		if r.Outcome != redisexec.Done || w.limit.seen.Load() == nil {
			continue
		}
		if s, err := store.DecodeStats(r.Value); err == nil && s.Limits != w.Limits {
			w.Loop.Log.Info("sluice: the queue has other limits than this worker says, and keeps them: to change them, call SetLimits",
				slog.Any("limits", s.Limits), slog.Any("worker_limits", w.Limits))
		}
	}
}

// askLimited sends a request for each worker that has limits, and returns these and the results.
func (ws present) askLimited(ctx context.Context, request func(w *Worker) redisexec.Request) (limited present, results []redisexec.Result) {
	limited = slices.DeleteFunc(slices.Clone(ws), func(w *Worker) bool { return w.Limits == store.Limits{} })
	if len(limited) == 0 {
		return nil, nil
	}
	requests := make([]redisexec.Request, len(limited))
	for i, w := range limited {
		requests[i] = request(w)
	}
	return limited, limited[0].Queue.Executor.Pipeline(ctx, requests)
}

// say says how all are, or that they have ended, in one pipeline. What fails is said again at the
// next time. It returns those whose queues have more to be dropped or forgotten.
func (ws present) say(ctx context.Context, within time.Duration, haveEnded bool) (left present) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	requests := make([]redisexec.Request, len(ws))
	for i, w := range ws {
		requests[i] = w.seen(haveEnded)
	}
	for i, r := range ws[0].Queue.Executor.Pipeline(ctx, requests) {
		if r.Value == int64(1) {
			left = append(left, ws[i])
		}
	}
	return left
}

// libraryVersion is the version of this library in the program, as far as that is known.
var libraryVersion = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/sluice-go/sluice" {
			return m.Version
		}
	}
	return info.Main.Version
})
