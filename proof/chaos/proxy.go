package main

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// To add and remove toxiproxy's toxics while connections are open can deadlock on a connection
// that no side reads. So each connection has one toxic for all its life, which does what its
// link's condition says, and counts what it does.

// link is one direction of the connections of one client.
type link struct {
	mu      sync.Mutex // guards what follows
	now     condition
	changed chan struct{} // closed at the next change
}

// condition is what happens on a link.
type condition struct {
	lose  bool          // the next data is lost, and the connection with it
	reset bool          // the connection is reset
	hold  bool          // data is held back
	quiet bool          // the connections that are open then carry nothing any more, and stay open
	delay time.Duration // data arrives this much later
	mute  bool          // messages of Pub/Sub are lost, and nothing else
	deaf  bool          // as quiet, for the connections that are subscribed
}

// applied counts what happened on all links.
var applied struct{ lost, resets, held, delayed, quiet, muted, deaf atomic.Int64 }

// links has all links, by the number that a toxic gets.
var links sync.Map

var linkNumber atomic.Int64

func newLink() (w *link, number int64) {
	w = &link{changed: make(chan struct{})}
	number = linkNumber.Add(1)
	links.Store(number, w)
	return w, number
}

func (w *link) set(c condition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.now, w.changed = c, make(chan struct{})
}

func (w *link) current() (condition, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.changed
}

// faultToxic applies a link's condition.
type faultToxic struct {
	Link int64 `json:"link"`
}

func init() { toxics.Register("fault", new(faultToxic)) }

// Pipe is called by toxiproxy, once per connection and direction.
func (t *faultToxic) Pipe(stub *toxics.ToxicStub) {
	found, _ := links.Load(t.Link)
	w := found.(*link)
	subscribed := false
	for {
		now, changed := w.current()
		switch {
		case now.reset:
			applied.resets.Add(1)
			stub.Close()
			return
		case now.hold:
			// To the sender its data counts as sent.
			<-changed
			applied.held.Add(1)
			continue
		case now.quiet:
			applied.quiet.Add(1)
			swallow(stub)
			return
		case now.deaf && subscribed:
			applied.deaf.Add(1)
			swallow(stub)
			return
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
			now, _ = w.current()
			if now.lose {
				applied.lost.Add(1)
				stub.Close()
				return
			}
			subscribed = subscribed || subscription.Match(chunk.Data)
			if now.mute && subscribed {
				applied.muted.Add(loseMessages(chunk))
			}
			if late := now.delay - time.Since(chunk.Timestamp); late > 0 {
				applied.delayed.Add(1)
				time.Sleep(late) // the network
			}
			stub.Output <- chunk
		}
	}
}

// What the server sends to its subscribers. A message that comes in two pieces is not found, and
// arrives.
var (
	subscription = regexp.MustCompile(`[*>]3\r\n\$\d+\r\ns?subscribe\r\n`)
	message      = regexp.MustCompile(`[*>]3\r\n\$\d+\r\ns?message\r\n\$\d+\r\n[^\r]*\r\n\$\d+\r\n[^\r]*\r\n`)
)

// loseMessages takes the messages out of data, and returns how many there were.
func loseMessages(chunk *stream.StreamChunk) (n int64) {
	n = int64(len(message.FindAllIndex(chunk.Data, -1)))
	if n > 0 {
		chunk.Data = message.ReplaceAll(chunk.Data, nil)
	}
	return n
}

// swallow loses all data of a connection until one of its sides closes it.
func swallow(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			if chunk == nil {
				stub.Close()
				return
			}
		}
	}
}

// proxy stands between a client and the server.
type proxy struct {
	*toxiproxy.Proxy
	requests, replies *link
}

// newProxy starts a proxy. Its connections end by a reset if hard is true, otherwise in order.
func newProxy(upstream string, hard bool) (*proxy, error) {
	registry := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxy{Proxy: toxiproxy.NewProxy(registry, "client", "127.0.0.1:0", upstream)}
	var up, down int64
	p.requests, up = newLink()
	p.replies, down = newLink()
	all := []string{
		fmt.Sprintf(`{"name": "requests", "type": "fault", "stream": "upstream", "attributes": {"link": %d}}`, up),
		fmt.Sprintf(`{"name": "replies", "type": "fault", "stream": "downstream", "attributes": {"link": %d}}`, down),
	}
	if hard { // it never takes effect itself, except that toxiproxy then ends connections by a reset
		all = append(all, `{"name": "hard", "type": "reset_peer", "stream": "downstream", "toxicity": 0}`)
	}
	for _, toxic := range all {
		if _, err := p.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return nil, err
		}
	}
	return p, p.Start()
}

// clear ends all faults of the proxy.
func (p *proxy) clear() {
	p.requests.set(condition{})
	p.replies.set(condition{})
}
