// Package exporter tells other programs of the queues of a Redis: Prometheus, probes, autoscalers
// and scripts. It finds the queues itself, so that a queue which is new needs no setting.
package exporter

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

const (
	// patience is how long an answer waits for Redis: less than Prometheus waits for the answer.
	patience = 8 * time.Second
	// searchFor is the most that a search takes: of twenty million keys half a minute, or an hour if each
	// of its steps takes 180 ms.
	searchFor = time.Hour
	// atOnce is how many queues are asked at the same time.
	atOnce = 16
)

// Options say what is told.
type Options struct {
	// Keys say where the queues are. Defaults to the library's own prefixes.
	Keys inspect.Options
	// Search is for how long a list of queues is good: after that the next request searches the keys
	// again. It is good for twenty times as long as the search took, at the least, but for no more than a
	// quarter of an hour for that. Defaults to half a minute.
	Search time.Duration
	// Stock has the metrics tell of each item for sale, too: three series for each item, for as long
	// as its stock exists. Defaults to false.
	Stock bool
}

// Exporter answers
//
//	GET /metrics           for Prometheus
//	GET /healthz           200 if Redis answers, else 503
//	GET /api/queues        all queues, as "sluice queues --json" prints them
//	GET /api/queues/NAME   one queue; all its counts are 0 if there is none of that name
//
// It is safe for concurrent use, changes nothing, and shows no ID, payload or token. It asks Redis
// only for a request, and has a goroutine of its own only while it searches the keys.
type Exporter struct {
	rdb     redis.UniversalClient
	options Options
	mux     *http.ServeMux

	mu        sync.Mutex // guards what follows
	names     []string
	complete  bool      // the search has seen all keys
	searched  time.Time // when the last search began that succeeded; zero for never
	next      time.Time // when it is too old
	searching chan struct{}
	failed    error // of the last search
}

// New returns an exporter on rdb, which stays the caller's to close. It sends nothing.
func New(rdb redis.UniversalClient, o Options) *Exporter {
	o.Search = cmp.Or(o.Search, 30*time.Second)
	e := &Exporter{rdb: rdb, options: o, mux: http.NewServeMux()}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{e})
	e.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	e.mux.HandleFunc("GET /healthz", e.health)
	e.mux.HandleFunc("GET /api/queues", e.queues)
	e.mux.HandleFunc("GET /api/queues/{name}", e.queue)
	return e
}

// Paths are what an Exporter answers, as patterns of http.ServeMux.
func Paths() []string { return []string{"/metrics", "/healthz", "/api/"} }

// ServeHTTP answers a request.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	e.mux.ServeHTTP(w, r)
}

func (e *Exporter) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	if err := e.rdb.Ping(ctx).Err(); err != nil { // the error may name the server
		http.Error(w, "Redis does not answer", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

// found is a queue, with its state; err is why that is not known.
type found struct {
	name  string
	queue *sluice.Queue
	stats sluice.Stats
	gone  bool // it has no keys
	err   error
}

var errUnreadable = errors.New("the state of this queue cannot be read")

func (e *Exporter) queues(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	all, complete, err := e.look(ctx)
	if err != nil {
		http.Error(w, "Redis does not answer", http.StatusServiceUnavailable)
		return
	}
	answer := report.Queues{Queues: []report.Queue{}, Complete: complete}
	for _, f := range all {
		if f.err != nil { // the error may name the server
			f.err, answer.Complete = errUnreadable, false
		}
		answer.Queues = append(answer.Queues, report.Of(f.name, f.stats, f.err))
	}
	writeJSON(w, answer)
}

func (e *Exporter) queue(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	q, err := inspect.Open(e.rdb, r.PathValue("name"), e.options.Keys)
	if err != nil {
		http.Error(w, "This is no name of a queue", http.StatusNotFound)
		return
	}
	stats, err := q.Stats(ctx)
	if err != nil { // an autoscaler must not take it for an empty queue
		http.Error(w, "The state of this queue cannot be read", http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, report.Of(q.Name(), stats, nil))
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = report.Print(w, value)
}

// look returns the state of all queues, and whether the search has found all. The error is that of
// a server which tells of none.
func (e *Exporter) look(ctx context.Context) (all []found, complete bool, err error) {
	names, complete, err := e.search(ctx)
	if err != nil {
		return nil, false, err
	}
	all = make([]found, len(names))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, name := range names {
		group.Go(func() error { // it ends with its reply; Wait waits for it
			q, err := inspect.Open(e.rdb, name, e.options.Keys)
			all[i].name, all[i].queue = name, q
			if err == nil {
				all[i].stats, err = q.Stats(ctx)
			}
			if err == nil && all[i].stats == (sluice.Stats{}) { // it may be gone since the search
				var is bool
				is, err = inspect.Exists(ctx, e.rdb, name, e.options.Keys)
				all[i].gone = err == nil && !is
			}
			all[i].err = err
			return nil
		})
	}
	_ = group.Wait()
	if there := slices.DeleteFunc(slices.Clone(all), func(f found) bool { return f.gone }); len(there) < len(all) {
		all = there
		e.mu.Lock()
		e.next = time.Time{} // others may be new: this may be another server
		e.mu.Unlock()
	}
	failed := 0
	for _, f := range all {
		if f.err != nil {
			failed, err = failed+1, f.err
		}
	}
	if failed > 0 && failed == len(all) {
		return nil, false, err
	}
	return all, complete, nil
}

// search returns the names of the queues. It searches the keys where the last search is too old. Where
// there is an older list, it waits for the search for a part of its patience only, and returns that
// list then: the search of many keys goes on for the next request.
func (e *Exporter) search(ctx context.Context) (names []string, complete bool, err error) {
	e.mu.Lock()
	if time.Now().Before(e.next) {
		defer e.mu.Unlock()
		return e.names, e.complete, nil
	}
	if e.searching == nil {
		e.searching = make(chan struct{})
		go e.searchKeys(context.WithoutCancel(ctx), e.searching)
	}
	done, wait := e.searching, patience
	if !e.searched.IsZero() {
		wait /= 8
	}
	e.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.searched.IsZero():
		return nil, false, cmp.Or(e.failed, errors.New("the search for queues takes too long"))
	case e.failed != nil && e.searching == nil: // the last one: a server that does not answer has no queues to tell of
		return nil, false, e.failed
	}
	return e.names, e.complete, nil
}

// searchKeys searches the keys. It ends by itself: after searchFor at the latest.
func (e *Exporter) searchKeys(ctx context.Context, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, searchFor)
	defer cancel()
	began := time.Now()
	names, err := inspect.Queues(ctx, e.rdb, e.options.Keys)
	e.mu.Lock()
	defer e.mu.Unlock()
	incomplete := errors.Is(err, inspect.ErrIncomplete)
	if ctx.Err() != nil && !e.searched.IsZero() { // too many keys for one search: those that are known are told
		names, incomplete = e.names, true
	}
	if e.failed = err; incomplete {
		e.failed = nil
	}
	if e.failed == nil {
		e.names, e.complete, e.searched = names, !incomplete, began
		took := time.Since(began)
		e.next = began.Add(max(e.options.Search, took+inspect.PauseBehind(took)))
	}
	e.searching = nil
	close(done)
}
