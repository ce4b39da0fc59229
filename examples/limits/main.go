// Limits keeps to what an API takes: ten requests in a second and three at a time, from all
// processes together. The API answers 429 beyond that, and here it never does. Calls that may wait
// are tasks of a queue with SetLimits, whichever worker has it. A web handler either
//   - enqueues the call and answers 202 (Later): if no result is waited for, or there may be more calls than the API takes. They wait in the
//     queue, also over a restart, and what fails is tried again; or
//   - calls at once with a permit (Now): if its client waits for the answer. Permits are a number at a time, without a rate. If none is
//     free in time, it answers 503 and leaves nothing behind.
//
// Each way has its own part of what the API takes: neither counts the other.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

// limits are the part of the tasks: one at a time of three, and in a second Rate and Burst together
// at most, seven of ten. One is left for a request that takes longer on its way than those behind
// it.
var limits = sluice.Limits{Running: 1, Rate: 6, Burst: 1}

// permits are the part of the web handler: two at a time of three and, as each is kept for a
// second, in a second two of ten.
const permits = 2

// Caller calls an API.
type Caller struct {
	Client *http.Client
	URL    string
	Queue  *sluice.Queue
	Locker *sluice.Locker
}

// Call is the handler of a Worker. It returns when its context ends: then the lease is lost, and
// Running does not count it.
func (c *Caller) Call(ctx context.Context, e sluice.Entry) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/"+e.ID, nil)
	if err != nil {
		return sluice.Permanent(err)
	}
	response, err := c.Client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusTooManyRequests: // others call it, too
		return fmt.Errorf("status %d: %w", response.StatusCode, sluice.Again(time.Second))
	}
	return fmt.Errorf("status %d", response.StatusCode)
}

// Later is the web handler that enqueues the call.
func (c *Caller) Later(w http.ResponseWriter, r *http.Request) {
	if _, err := c.Queue.Enqueue(r.Context(), sluice.Task{ID: r.FormValue("id")}); err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// Now is the web handler that waits for a permit, and for the answer.
func (c *Caller) Now(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	permit, err := c.Locker.Lock(ctx, "calls", sluice.WithPermits(permits))
	if err != nil {
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	began := time.Now()
	err = c.Call(permit.Context(), sluice.Entry{ID: r.FormValue("id")})
	time.AfterFunc(time.Until(began.Add(time.Second)), func() { _ = permit.Unlock(context.Background()) }) // else Close does
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "limits:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	m, err := miniredis.Run() // a real program connects to its own Redis
	if err != nil {
		return err
	}
	defer m.Close()
	api := &API{Took: 50 * time.Millisecond}
	server := httptest.NewServer(api)
	defer server.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var workers, visitors errgroup.Group
	var c *Caller
	for range 3 { // processes
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		defer rdb.Close()
		if c, err = start(ctx, rdb, Caller{Client: server.Client(), URL: server.URL}, &workers); err != nil {
			return err
		}
		defer c.Locker.Close()
	}
	for i := range 21 {
		visitors.Go(func() error {
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("/?id=%d", i), nil)
			c.Later(httptest.NewRecorder(), r)
			if i%4 == 0 {
				c.Now(httptest.NewRecorder(), r)
			}
			return nil
		})
	}
	_ = visitors.Wait()
	for s := (sluice.Stats{Due: 1}); err == nil && s.Due+s.Leased+s.Scheduled > 0; time.Sleep(10 * time.Millisecond) {
		s, err = c.Queue.Stats(ctx)
	}
	stop()
	fmt.Fprintf(out, "the API has taken %d requests, and refused %d\n", api.Taken(), api.Refused())
	return errors.Join(err, workers.Wait())
}

// start starts a worker in a process. Limits are set by each: they replace what there is.
func start(ctx context.Context, rdb *redis.Client, c Caller, workers *errgroup.Group) (*Caller, error) {
	var err error
	if c.Queue, err = sluice.NewQueue(rdb, "calls"); err != nil {
		return nil, err
	}
	if c.Locker, err = sluice.NewLocker(rdb); err != nil {
		return nil, err
	}
	worker := &sluice.Worker{Queue: c.Queue, Handler: c.Call, Timeout: 10 * time.Second}
	workers.Go(func() error { return worker.Run(ctx) })
	return &c, c.Queue.SetLimits(ctx, limits)
}
