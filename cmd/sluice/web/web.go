// Package web provides the operator's page: queues, tasks, dead letters and locks in a browser.
//
// [New] returns it as a handler, for a server of one's own; the command "sluice serve" starts a
// server with nothing else. The pages are rendered here, need no other host, and work without their
// script, which only keeps the figures up to date. They show no lock's token, and a task's payload
// only when asked for.
package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// Options say where the page is mounted, what it shows, and whether it may change anything. The
// zero value is a page that only shows, at the root of a server which is asked by an IP address or
// as localhost.
type Options struct {
	// Prefix is the path under which the handler is mounted, such as "/ops/sluice". The handler
	// takes it off itself: use no http.StripPrefix. Defaults to none.
	Prefix string
	// LockPrefix and QueuePrefix are what the keys of locks and queues begin with. Default to
	// "Lock:" and "Queue:"; inspect.NoPrefix is for none.
	LockPrefix, QueuePrefix string
	// Hosts are the names, without a port, under which the server is asked: the Host of each
	// request must be one of them, localhost, or an IP address. Without this check a foreign site
	// could have its name resolved to this server, and read the page in a visitor's browser. "*" is
	// for any name: then something in front of the handler has to check. Defaults to none.
	Hosts []string
	// Write allows visitors to pause and limit queues, to change tasks and to force locks open. The
	// handler does not ask who a visitor is: put it behind what does. Defaults to false.
	Write bool
	// Logger is told of each change that a visitor makes. Defaults to none.
	Logger *slog.Logger
	// User says who has sent a request, for the Logger. Defaults to none.
	User func(r *http.Request) string
	// Beside are other handlers below the prefix, by their patterns without it, such as "GET /metrics".
	// The page's checks of the host hold for them, too. Defaults to none.
	Beside map[string]http.Handler
}

// patience is how long a page waits for Redis.
const patience = 10 * time.Second

// mostKeys is how many keys of each primary a search looks at: that takes a few seconds.
const mostKeys = 5_000_000

//go:embed html/*.html
var pages embed.FS

//go:embed assets
var assets embed.FS

// page is the handler.
type page struct {
	rdb     redis.UniversalClient
	options Options
	keys    inspect.Options
	locker  *sluice.Locker
	mux     *http.ServeMux
	views   map[string]*template.Template
	files   map[string]file
	watch   *watch
	clock   *shared[time.Duration]
	busy    time.Duration // how long a search, or a change of many letters, goes on before it is left for the next press

	tables looks[queuesData]
	lists  looks[queueList]
	tasks  looks[taskData]
	locks  looks[foundLocks]
	compressors
	large chan struct{} // has a value for each payload that is being read
}

// file is one of the files that pages need.
type file struct {
	name, kind string // the name has a digest of the content
	content    []byte
	compressed []byte // the content, for who accepts gzip
}

// New returns the operator's page on rdb, which stays the caller's to close. It does no I/O. The
// handler is safe for concurrent use; it has no goroutine while no request is under way, except one
// for each search of the keys, which ends by itself, and those of Page.Watch. The error is
// sluice.ErrInvalid.
func New(rdb redis.UniversalClient, o Options) (*Page, error) {
	if o.Prefix != "" && (!strings.HasPrefix(o.Prefix, "/") || strings.HasPrefix(o.Prefix, "//") || strings.HasSuffix(o.Prefix, "/") || strings.ContainsAny(o.Prefix, "?#%;\\ ")) {
		return nil, fmt.Errorf("sluice: page: %w: the prefix %q is no path such as /ops/sluice", sluice.ErrInvalid, o.Prefix)
	}
	p := &page{
		rdb: rdb, options: o, mux: http.NewServeMux(),
		keys: inspect.Options{LockPrefix: o.LockPrefix, QueuePrefix: o.QueuePrefix, MaxKeys: mostKeys},
	}
	var err error
	if p.locker, err = sluice.NewLocker(rdb, sluice.WithLockPrefix(p.keys.LockKeys())); err != nil {
		return nil, fmt.Errorf("sluice: page: %w", err)
	}
	if _, err = sluice.NewQueue(rdb, "a", sluice.WithQueuePrefix(p.keys.QueueKeys())); err != nil {
		return nil, fmt.Errorf("sluice: page: %w", err)
	}
	if err := errors.Join(p.loadFiles(), p.loadPages()); err != nil {
		return nil, fmt.Errorf("sluice: page: %w", err)
	}
	p.watch = newWatch(p)
	p.compressors = newCompressors()
	p.busy, p.large = patience*2/5, make(chan struct{}, 2)
	p.clock = &shared[time.Duration]{every: time.Minute, look: p.clockDifference}
	p.route()
	return &Page{p}, nil
}

// loadFiles names each file by a digest of its content, so that browsers may keep it.
func (p *page) loadFiles() error {
	p.files = map[string]file{}
	for name, kind := range map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		content, err := assets.ReadFile("assets/" + name)
		if err != nil {
			return err
		}
		digest := sha256.Sum256(content)
		base, ending, _ := strings.Cut(name, ".")
		packed, err := compress(content)
		if err != nil {
			return err
		}
		p.files[name] = file{compressed: packed, name: base + "." + hex.EncodeToString(digest[:6]) + "." + ending, kind: kind, content: content}
	}
	return nil
}

// loadPages parses each page with the frame that all have.
func (p *page) loadPages() error {
	p.views = map[string]*template.Template{}
	for _, name := range []string{"queues", "queue", "task", "locks", "lock", "confirm", "error"} {
		t, err := template.New("frame.html").Funcs(functions).ParseFS(pages, "html/frame.html", "html/parts.html", "html/"+name+".html")
		if err != nil {
			return err
		}
		p.views[name] = t
	}
	return nil
}

// route says which function answers what. The names of queues, tasks and locks are one segment
// each: see segment.
func (p *page) route() {
	get := func(pattern string, show func(*visit) error) { p.mux.HandleFunc("GET "+pattern, p.show(show)) }
	post := func(pattern string, change func(*visit) error) { p.mux.HandleFunc("POST "+pattern, p.change(change)) }
	get("/{$}", p.showQueues)
	get("/queues/{queue}", p.showQueue)
	get("/queues/{queue}/tasks/{task}", p.showTask)
	get("/locks", p.showLocks)
	get("/locks/{lock}", p.showLock)
	post("/queues/{queue}", p.changeQueue)
	post("/queues/{queue}/tasks", p.changeTasks)
	post("/queues/{queue}/tasks/{task}", p.changeTask)
	post("/locks/{lock}", p.changeLock)
	for _, moved := range []string{"/queues", "/queues/{$}"} {
		p.mux.HandleFunc("GET "+moved, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, p.options.Prefix+"/", http.StatusSeeOther)
		})
	}
	p.mux.HandleFunc("GET /queues/{queue}/tasks", func(w http.ResponseWriter, r *http.Request) { // where a question stood
		http.Redirect(w, r, p.queueURL(fromSegment(r.PathValue("queue"))), http.StatusSeeOther)
	})
	for _, f := range p.files {
		p.mux.HandleFunc("GET /assets/"+f.name, f.serve)
	}
	for pattern, handler := range p.options.Beside {
		p.mux.Handle(pattern, handler)
	}
	p.mux.HandleFunc("GET /", p.show(func(*visit) error { return errNoPage }))
}
