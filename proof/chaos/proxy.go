package main

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// The toxics of toxiproxy are put in and taken out while connections are open, which
// can deadlock on one that nobody reads. So each link has one toxic for all its life,
// which does what the weather says, and counts what it does.

// weather is what happens on the connections of one client, in one direction.
type weather struct {
	mu      sync.Mutex // guards what follows
	now     condition
	changed chan struct{} // closed at the next change
}

// condition is what a link does.
type condition struct {
	lose  bool          // the next data is lost, and the connection with it
	reset bool          // the connection is reset
	hold  bool          // data is held back
	delay time.Duration // data comes so much later
}

// struck counts what links have done.
var struck struct{ lost, resets, held, delayed atomic.Int64 }

// skies are all weathers, by the number that a toxic is given.
var skies sync.Map

var skyNumber atomic.Int64

func newWeather() (w *weather, number int64) {
	w = &weather{changed: make(chan struct{})}
	number = skyNumber.Add(1)
	skies.Store(number, w)
	return w, number
}

func (w *weather) set(c condition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.now, w.changed = c, make(chan struct{})
}

func (w *weather) look() (condition, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.changed
}

// skyToxic subjects a link to a weather.
type skyToxic struct {
	Sky int64 `json:"sky"`
}

func init() { toxics.Register("sky", new(skyToxic)) }

// Pipe is called by toxiproxy, once per connection and direction.
func (t *skyToxic) Pipe(stub *toxics.ToxicStub) {
	found, _ := skies.Load(t.Sky)
	w := found.(*weather)
	for {
		now, changed := w.look()
		switch {
		case now.reset:
			struck.resets.Add(1)
			stub.Close()
			return
		case now.hold:
			// Whoever has sent something believes that it is on its way.
			<-changed
			struck.held.Add(1)
			continue
		}
		select {
		case <-changed:
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			if chunk == nil {
				stub.Close()
				return
			}
			now, _ = w.look()
			if now.lose {
				struck.lost.Add(1)
				stub.Close()
				return
			}
			if late := now.delay - time.Since(chunk.Timestamp); late > 0 {
				struck.delayed.Add(1)
				time.Sleep(late) // the network
			}
			stub.Output <- chunk
		}
	}
}

// proxy is what a client talks to the server through.
type proxy struct {
	*toxiproxy.Proxy
	requests, replies *weather
}

// newProxy starts a proxy. With hard, connections end by a reset; else, in order.
func newProxy(upstream string, hard bool) (*proxy, error) {
	registry := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxy{Proxy: toxiproxy.NewProxy(registry, "client", "127.0.0.1:0", upstream)}
	var up, down int64
	p.requests, up = newWeather()
	p.replies, down = newWeather()
	all := []string{
		fmt.Sprintf(`{"name": "requests", "type": "sky", "stream": "upstream", "attributes": {"sky": %d}}`, up),
		fmt.Sprintf(`{"name": "replies", "type": "sky", "stream": "downstream", "attributes": {"sky": %d}}`, down),
	}
	if hard { // it never comes into effect, but for making toxiproxy end connections hard
		all = append(all, `{"name": "hard", "type": "reset_peer", "stream": "downstream", "toxicity": 0}`)
	}
	for _, toxic := range all {
		if _, err := p.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return nil, err
		}
	}
	return p, p.Start()
}

// calm ends whatever happens on the proxy.
func (p *proxy) calm() {
	p.requests.set(condition{})
	p.replies.set(condition{})
}
