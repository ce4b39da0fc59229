package sluice

import (
	"context"
	"encoding/json"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// sayEvery is how often a worker says that it lives, at least, unless it polls less often. Its word counts for sayLasts times as long.
	sayEvery  = 15 * time.Second
	sayRarest = 8 * time.Hour
	// sayAgain is how soon it says so again while its queue has more to be dropped or forgotten:
	// seen.lua does that, in bounded steps.
	sayAgain = 250 * time.Millisecond
	sayLasts = 3
	// sayFor bounds each try, and partFor the last one, for which Run waits.
	sayFor  = 5 * time.Second
	partFor = 250 * time.Millisecond
	// workerIDLength is how long an ID of a worker is: 40 random bits.
	workerIDLength = 8
)

// WorkerInfo is a Worker that runs, as it says of itself.
type WorkerInfo struct {
	// ID is of one Run of a Worker: TaskInfo.Worker is the same.
	ID string
	// Label is the Worker's.
	Label string
	// Host is where it runs, PID its process, and Version that of this library.
	Host, Version string
	PID           int
	// Concurrency is how many handlers it may have at once, in a Pool at most. Running is how many it had when it was last seen, and
	// Stuck how many of these are stuck: see Worker.Timeout.
	Concurrency, Running, Stuck int
	// Started is when Run was called, by its own clock. Seen is when it last said that it lives, by the server's.
	Started, Seen time.Time
}

// Workers returns the Workers of the queue that run, of all processes. It changes nothing.
//
// Each says every 15 seconds that it lives, or once in a poll interval if that is longer (see WithPollInterval);
// one that has died is left out when it has been silent for three times as long. Loops of one's own, with Claim or
// Pop, are not among them.
func (q *Queue) Workers(ctx context.Context) ([]WorkerInfo, error) {
	const op = "workers"
	if err := q.check(op); err != nil {
		return nil, err
	}
	reply, err := q.executor.Run(ctx, q.store.Workers())
	if err != nil {
		return nil, wrap(op, q.name, err)
	}
	said, err := store.DecodeWorkers(reply.Value)
	var workers []WorkerInfo
	at := map[string]int{}
	for _, s := range said {
		w, ok := sayingOf(s.Text, s.Until)
		switch i, again := at[w.ID]; {
		case !ok: // not the library's
		case again: // it does not know whether an earlier one was noted
			workers[i] = w
		default:
			at[w.ID] = len(workers)
			workers = append(workers, w)
		}
	}
	return workers, wrap(op, q.name, err)
}

// saying is what a worker says of itself, as it is stored.
type saying struct {
	ID          string `json:"id"`
	Label       string `json:"label,omitempty"`
	Host        string `json:"host"`
	Version     string `json:"version"`
	PID         int    `json:"pid"`
	Concurrency int    `json:"concurrency"`
	Running     int    `json:"running"`
	Stuck       int    `json:"stuck"`
	Started     int64  `json:"started"` // Unix milliseconds
	Counts      int64  `json:"counts"`  // for how many seconds
}

// sayingOf returns the worker that has said this, which counts until then, and whether it is one.
func sayingOf(text string, until float64) (w WorkerInfo, ok bool) {
	var s saying
	if json.Unmarshal([]byte(text), &s) != nil || s.ID == "" {
		return w, false
	}
	return WorkerInfo{
		ID: s.ID, Label: s.Label, Host: s.Host, Version: s.Version, PID: s.PID, Concurrency: s.Concurrency,
		Running: s.Running, Stuck: s.Stuck, Started: time.UnixMilli(s.Started), Seen: store.TimeOf(until - float64(s.Counts)),
	}, true
}

// presence has a worker that runs seen, keeps the counts of its queue, and has dropped and forgotten what
// its options do not allow.
type presence struct {
	worker *Worker
	saying saying
	before []string // what it may have said before
}

// newPresence returns that of a worker that begins to run with this ID.
func newPresence(w *Worker, id string) *presence {
	host, _ := os.Hostname()
	return &presence{worker: w, saying: saying{
		ID: id, Label: w.Label, Host: host, Version: libraryVersion(), PID: os.Getpid(), Started: time.Now().UnixMilli(),
	}}
}

// request says how the worker is, or that it has ended.
func (p *presence) request(hasEnded bool) redisexec.Request {
	said := ""
	if !hasEnded {
		stats := p.worker.Stats()
		p.saying.Concurrency, p.saying.Running, p.saying.Stuck = int(p.worker.counters.Most.Load()), int(stats.Running), int(stats.Stuck)
		text, _ := json.Marshal(p.saying) // of strings and numbers: it never fails
		said = string(text)
	}
	r := p.worker.Queue.store.Seen(p.saying.Counts, said, p.before)
	if said != "" {
		p.before = append(p.before, said)
	}
	return r
}

// noted notes whether the server has what was said last.
func (p *presence) noted(r redisexec.Result) {
	const most = 4 // what was said before is over
	if last := len(p.before) - 1; last >= 0 && r.Outcome == redisexec.Done {
		p.before = p.before[last:]
	} else if last >= most {
		p.before = p.before[1:]
	}
}

// presences are those of the workers of one client.
type presences []*presence

// keep has the workers seen until ctx ends, and then takes them off the list.
func (ps presences) keep(ctx context.Context) {
	every := sayRarest
	for _, p := range ps {
		every = min(every, max(sayEvery, min(p.worker.Queue.options.poll, sayRarest)))
	}
	for _, p := range ps {
		p.saying.Counts = int64(sayLasts * every / time.Second)
	}
	backoff.Sleep(ctx, backoff.Half(time.Second)) // a start has enough to do
	if ctx.Err() != nil {
		return
	}
	for ctx.Err() == nil {
		next := time.Now().Add(every - backoff.Half(every/4)) // those of a fleet that has started at once come apart
		for left := ps.say(ctx, sayFor, false); len(left) > 0 && time.Until(next) > 0; left = left.say(ctx, sayFor, false) {
			backoff.Sleep(ctx, sayAgain)
		}
		backoff.Sleep(ctx, time.Until(next))
	}
	ps.say(context.WithoutCancel(ctx), partFor, true)
}

// say says how all are, or that they have ended, in one pipeline. What fails is said again at the next time.
// It returns those whose queues have more to be dropped or forgotten.
func (ps presences) say(ctx context.Context, within time.Duration, haveEnded bool) (left presences) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	requests := make([]redisexec.Request, len(ps))
	for i, p := range ps {
		requests[i] = p.request(haveEnded)
	}
	for i, r := range ps[0].worker.Queue.executor.Pipeline(ctx, requests) {
		if !haveEnded {
			ps[i].noted(r)
		}
		if r.Value == int64(1) {
			left = append(left, ps[i])
		}
	}
	return left
}

// startPresence has the workers of a crew seen: one goroutine for each client. What it returns ends them, and waits for that.
func startPresence(ctx context.Context, all presences) (stop func()) {
	byClient := map[any]presences{}
	for _, p := range all {
		byClient[p.worker.Queue.client] = append(byClient[p.worker.Queue.client], p)
	}
	var keeps []func(ctx context.Context)
	for _, ps := range byClient {
		keeps = append(keeps, ps.keep)
	}
	return background.Start(ctx, keeps...)
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
