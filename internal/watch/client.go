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

	looker   looker
	alone    chan struct{} // has a value for each look at one queue that is under way
	id       string        // in lines
	watchers weakMap[any, Watcher]
}

func newClient(rdb redis.UniversalClient, scripts *store.Scripts) *Client {
	c := &Client{
		Executor: redisexec.New(rdb), Notifier: notify.New(rdb), Scripts: scripts, id: rand.Text()[:12], alone: make(chan struct{}, looksAtOnce),
	}
	c.looker.init(c.Executor, scripts)
	return c
}

const (
	// looksAtOnce is how many queues are looked at alone at a time: many begin to be waited for
	// together, when the client begins or has a new connection for pub/sub.
	looksAtOnce = 2
	// holdsUp is how long a look waits for one of these to end. One that takes longer is on a
	// server that hangs.
	holdsUp = 20 * time.Millisecond
)

// lookingAlone waits until a queue may be looked at alone. What it returns says that it was.
func (c *Client) lookingAlone() (done func()) {
	select {
	case c.alone <- struct{}{}:
		return func() { <-c.alone }
	case <-time.After(holdsUp):
		return func() {}
	}
}

// Watcher returns the watcher of a queue, which all share that wait for it on this client. It
// starts nothing. Until a caller of [Wait] says otherwise, it is looked at once per poll interval.
func (c *Client) Watcher(q *store.Queue, poll time.Duration) *Watcher {
	return c.watchers.get(q.RoutingKey(), func() *Watcher {
		return &Watcher{client: c, queue: q, channel: q.WakeChannel() + ":" + c.id, interval: min(poll, store.FarOff)}
	})
}

// Registry finds the Client of a redis.UniversalClient, by its type and address. It keeps neither
// alive: the watchers do.
type Registry struct {
	scripts *store.Scripts
	clients weakMap[pointer, Client]
}

// pointer is a redis.UniversalClient that is a pointer.
type pointer struct {
	to      reflect.Type
	address uintptr
}

// NewRegistry returns a registry of clients that look at queues with these scripts.
func NewRegistry(scripts *store.Scripts) *Registry { return &Registry{scripts: scripts} }

// ClientOf returns the Client of rdb, which is shared if rdb is a pointer. What else a user may
// implement the interface with cannot be compared, perhaps.
func (r *Registry) ClientOf(rdb redis.UniversalClient) *Client {
	v := reflect.ValueOf(rdb)
	if v.Kind() != reflect.Pointer {
		return newClient(rdb, r.scripts)
	}
	return r.clients.get(pointer{v.Type(), v.Pointer()}, func() *Client { return newClient(rdb, r.scripts) })
}

// weakMap finds values by their keys, and keeps no value alive.
type weakMap[K comparable, V any] struct {
	mu     sync.Mutex // guards what follows
	values map[K]weak.Pointer[V]
}

// get returns the value of a key. If there is none any more, that is a new one.
func (m *weakMap[K, V]) get(key K, create func() *V) *V {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.values[key].Value(); v != nil {
		return v
	}
	v := create()
	if m.values == nil {
		m.values = map[K]weak.Pointer[V]{}
	}
	m.values[key] = weak.Make(v)
	runtime.AddCleanup(v, m.forget, key)
	return v
}

// forget forgets a value that was collected.
func (m *weakMap[K, V]) forget(key K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.values[key].Value() == nil {
		delete(m.values, key)
	}
}
