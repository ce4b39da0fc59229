package watch

import (
	"reflect"
	"runtime"
	"sync"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// Scripts look at queues.
type Scripts interface {
	// Look returns a request that looks at queues of one slot, [MaxLook] at most. Only of several
	// queues may one fail without the others.
	Look(queues []*Queue) redisexec.Request
	// Heads decodes the reply of a look at n queues.
	Heads(reply any, n int) ([]Head, error)
}

// Client is what all queues on one redis.UniversalClient share.
type Client struct {
	// Notifier has the pub/sub connections.
	Notifier *notify.Notifier

	rdb     redis.UniversalClient
	scripts Scripts
	looker  looker
}

func newClient(rdb redis.UniversalClient, scripts Scripts) *Client {
	c := &Client{rdb: rdb, Notifier: notify.New(rdb), scripts: scripts}
	c.looker.init(redisexec.New(rdb), scripts)
	return c
}

// Watcher returns a watcher of a queue. It starts nothing.
func (c *Client) Watcher(q Queue) *Watcher { return &Watcher{client: c, queue: q} }

// Look returns a request that looks at the watcher's queue alone.
func (w *Watcher) Look() redisexec.Request { return w.client.scripts.Look([]*Queue{&w.queue}) }

// Registry finds the Client of a redis.UniversalClient, by its address. It keeps neither alive:
// the watchers do. An address that is used again for another one is told by Client.rdb.
type Registry struct {
	scripts Scripts

	mu        sync.Mutex // guards what follows
	byAddress map[uintptr]weak.Pointer[Client]
}

// NewRegistry returns a registry of clients that look at queues with these scripts.
func NewRegistry(scripts Scripts) *Registry {
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
