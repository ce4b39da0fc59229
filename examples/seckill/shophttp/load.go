package shophttp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// requestLimit is how long a customer waits for an answer. No customer should ever have to.
	requestLimit = 15 * time.Second
	// reportEvery is how often a process of the load generator reports.
	reportEvery = 100 * time.Millisecond
	// afterwards is the pause of a connection between the requests beyond the number asked for, for
	// units that came back late.
	afterwards = 20 * time.Millisecond
)

// load is one process of the load generator.
type load struct {
	assignment
	client *http.Client
	sent   atomic.Int64 // requests
	over   atomic.Bool  // the service says that all is sold and paid
	sold   atomic.Int64 // when a unit was last sold, in Unix nanoseconds
	late   sync.WaitGroup

	mu   sync.Mutex // guards what follows
	news report     // since the last report
}

// generate sends requests over a.Connections connections, until a.Requests are sent and the sale is
// over.
func generate(ctx context.Context, a assignment, say func(report)) error {
	transport := &http.Transport{MaxIdleConnsPerHost: 2 * a.Connections, DisableCompression: true}
	l := &load{assignment: a, client: &http.Client{Transport: transport, Timeout: requestLimit}}
	l.sold.Store(time.Now().UnixNano())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var connections sync.WaitGroup
		for range a.Connections {
			connections.Go(func() { l.shop(ctx) })
		}
		connections.Wait()
		l.late.Wait()
	}()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			say(l.take())
		case <-ended:
			say(l.take())
			return ctx.Err()
		}
	}
}

// take returns what is new.
func (l *load) take() report {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.news
	l.news = report{}
	return news
}

// shop is one connection: customer after customer. Every tenth request is the customer before, on a
// second device and so at about the same time.
func (l *load) shop(ctx context.Context) {
	for ctx.Err() == nil {
		n := int(l.sent.Add(1)) - 1
		if n >= l.Requests {
			if l.over.Load() || time.Since(time.Unix(0, l.sold.Load())) > AnswerWithin+2*l.PayWithin {
				return // in the second case not all is sold, and Result.Check says so
			}
			pause(ctx, afterwards)
		}
		l.buy(ctx, l.First+(n-(n+1)/10)%l.Customers)
	}
}

// buy has a customer ask for a unit and, of ten that got one, seven pay at once, one pays at the
// moment of the cancellation, and two never do.
func (l *load) buy(ctx context.Context, customer int) {
	began := time.Now()
	status, body, err := l.post(ctx, fmt.Sprintf("/buy/%d", customer))
	if ctx.Err() != nil {
		return
	}
	l.note(status, err, time.Since(began))
	switch {
	case err != nil: // the process died, say: what it has done of this is not known
		return
	case status == http.StatusGone:
		l.over.Store(true)
		return
	case status != http.StatusCreated:
		return
	}
	l.sold.Store(time.Now().UnixNano())
	switch intent := intends(customer); {
	case intent < 7:
		l.pay(ctx, body)
	case intent == 7:
		l.late.Go(func() {
			pause(ctx, l.PayWithin)
			l.pay(ctx, body)
		})
	}
}

// intends returns 0 to 9, each for a tenth of the customers, neighbours or not.
func intends(customer int) uint32 { return uint32(customer+1) * 2654435761 >> 16 % 10 }

// pay pays an order. It asks again if there is no answer, which is harmless, or no row so far.
func (l *load) pay(ctx context.Context, order string) {
	for began := time.Now(); time.Since(began) < requestLimit; {
		status, _, err := l.post(ctx, "/pay/"+order)
		if err == nil && status != http.StatusServiceUnavailable {
			if status == http.StatusOK {
				l.mu.Lock()
				l.news.Paid++
				l.mu.Unlock()
			}
			return
		}
		pause(ctx, afterwards)
	}
}

func (l *load) post(ctx context.Context, path string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.URL+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := l.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func (l *load) note(status int, err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.news.Times == nil {
		l.news.Times = histogram{}
	}
	l.news.Times[bucketOf(took)]++
	l.news.Requests++
	switch {
	case err != nil && took >= requestLimit:
		l.news.Hung++
	case err != nil:
		l.news.Broken++
	case status == http.StatusCreated:
		l.news.Sold++
	case status == http.StatusServiceUnavailable:
		l.news.Failed++
	}
}

// pause sleeps, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
