package watch

import (
	"crypto/rand"
	"reflect"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Client is what all queues on one redis.UniversalClient share. Nothing closes it: its goroutines
// end when they are idle.
type Client struct {
	// Executor sends their requests.
	Executor *redisexec.Executor
	// Notifier has the pub/sub connections.
	Notifier *notify.Notifier
	// Scripts are those with which queues are worked on.
	Scripts *store.Scripts

	rdb    redis.UniversalClient
	looker looker
	alone  chan struct{} // has a value for each look at one queue that is under way
	id     string        // in lines

	mu       sync.Mutex // guards what follows
	watchers map[any]weak.Pointer[Watcher]
}

func newClient(rdb redis.UniversalClient, scripts *store.Scripts) *Client {
	c := &Client{
		rdb: rdb, Executor: redisexec.New(rdb), Notifier: notify.New(rdb), Scripts: scripts, id: rand.Text()[:12],
		watchers: map[any]weak.Pointer[Watcher]{}, alone: make(chan struct{}, looksAtOnce),
	}
	c.looker.init(c.Executor, scripts)
	return c
}

const (
	// looksAtOnce is how many queues are looked at alone at a time: many begin to be waited for
	// together, when the client begins or has a new connection for pub/sub.
	looksAtOnce = 2
	// holdsUp is for how long they hold up another one. One that takes longer has a server that
	// hangs.
	holdsUp = 20 * time.Millisecond
)

// lookingAlone waits until a queue may be looked at alone. What it returns says that it was.
func (c *Client) lookingAlone() (done func()) {
	select {
	case c.alone <- struct{}{}:
	default:
		timer := time.NewTimer(holdsUp)
		defer timer.Stop()
		select {
		case c.alone <- struct{}{}:
		case <-timer.C:
			return func() {}
		}
	}
	return func() { <-c.alone }
}

// Watcher returns the watcher of a queue, which all share that wait for it on this client. It
// starts nothing. Until a caller of [Wait] says otherwise, it is looked at once per poll interval.
func (c *Client) Watcher(q *store.Queue, poll time.Duration) *Watcher {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.watchers[q.RoutingKey()].Value(); w != nil {
		return w
	}
	w := &Watcher{client: c, queue: q, channel: q.WakeChannel() + ":" + c.id, interval: min(poll, store.FarOff)}
	c.watchers[q.RoutingKey()] = weak.Make(w)
	runtime.AddCleanup(w, c.forgetWatcher, q.RoutingKey())
	return w
}

// forgetWatcher forgets a watcher that was collected.
func (c *Client) forgetWatcher(key any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watchers[key].Value() == nil {
		delete(c.watchers, key)
	}
}

// Registry finds the Client of a redis.UniversalClient, by its address. It keeps neither alive:
// the watchers do. An address that is used again for another one is told by Client.rdb.
type Registry struct {
	scripts *store.Scripts

	mu        sync.Mutex // guards what follows
	byAddress map[uintptr]weak.Pointer[Client]
}

// NewRegistry returns a registry of clients that look at queues with these scripts.
func NewRegistry(scripts *store.Scripts) *Registry {
	return &Registry{scripts: scripts, byAddress: map[uintptr]weak.Pointer[Client]{}}
}

// ClientOf returns the Client of rdb, which is shared if rdb is a pointer. What else a user may
// implement the interface with cannot be compared, perhaps.
func (r *Registry) ClientOf(rdb redis.UniversalClient) *Client {
	v := reflect.ValueOf(rdb)
	if v.Kind() != reflect.Pointer {
		return newClient(rdb, r.scripts)
	}
	address := v.Pointer()
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byAddress[address].Value(); c != nil && c.rdb == rdb {
		return c
	}
	c := newClient(rdb, r.scripts)
	r.byAddress[address] = weak.Make(c)
	runtime.AddCleanup(c, r.forget, address)
	return c
}

// forget forgets a client that was collected.
func (r *Registry) forget(address uintptr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byAddress[address].Value() == nil {
		delete(r.byAddress, address)
	}
}

// Len returns how many clients are registered.
func (r *Registry) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byAddress)
}
