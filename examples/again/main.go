// Again sends tasks to an API that limits requests: it answers 429 and says when to come back
// (Retry-After). Such a task has not failed: sluice.Again puts it off, and no attempt is used up.
// What the API refuses for good becomes a dead letter; what is out of order is retried.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// Sender sends tasks to an API.
type Sender struct {
	Client *http.Client
	URL    string
}

// Handle is the handler of a Worker.
func (s Sender) Handle(ctx context.Context, e sluice.Entry) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/"+e.ID, strings.NewReader(string(e.Payload)))
	if err != nil {
		return sluice.Permanent(err)
	}
	request.Header.Set("Idempotency-Key", e.ID) // a handler may run twice
	response, err := s.Client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch status := response.StatusCode; {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return fmt.Errorf("status %d: %w", status, sluice.Again(retryAfter(response.Header)))
	case status >= 500:
		return fmt.Errorf("status %d", status) // retried after a growing pause
	case status >= 400:
		return sluice.Permanent(fmt.Errorf("status %d", status))
	}
	return nil
}

// retryAfter returns what the header Retry-After says in seconds: at least a second, an hour at
// most. It comes from another program.
func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil {
		seconds = 10
	}
	return time.Duration(min(max(seconds, 1), 3600)) * time.Second
}

// limited is an API that takes two requests a second.
type limited struct {
	mu     sync.Mutex // guards what follows
	second int64
	taken  int
}

func (l *limited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now().Unix(); now != l.second {
		l.second, l.taken = now, 0
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/bad"):
		w.WriteHeader(http.StatusUnprocessableEntity)
	case l.taken == 2:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		l.taken++
	}
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "again:", err)
		os.Exit(1)
	}
}

// run sends five invoices, of which one is bad, through a limit of two a second. A task may be
// claimed once only.
func run(ctx context.Context, out io.Writer) error {
	m, err := miniredis.Run() // a real program connects to its own Redis
	if err != nil {
		return err
	}
	defer m.Close()
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	queue, err := sluice.NewQueue(rdb, "invoices", sluice.WithMaxAttempts(1))
	if err != nil {
		return err
	}
	for _, id := range []string{"1", "2", "bad", "3", "4"} {
		if _, err := queue.Enqueue(ctx, sluice.Task{ID: id}); err != nil {
			return err
		}
	}
	api := httptest.NewServer(&limited{})
	defer api.Close()
	sender := Sender{Client: api.Client(), URL: api.URL}
	worker := &sluice.Worker{Queue: queue, Handler: sender.Handle, Timeout: 10 * time.Second}
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	go func() {
		for ctx.Err() == nil {
			if s := worker.Stats(); s.Done+s.Buried == 5 {
				stop()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	err = worker.Run(ctx)
	s := worker.Stats()
	fmt.Fprintf(out, "sent %d, put off: %t, refused for good %d, failed attempts %d\n", s.Done, s.Again > 0, s.Buried, s.Retried)
	if s.Done != 4 {
		err = errors.Join(err, errors.New("not all were sent"))
	}
	return err
}
