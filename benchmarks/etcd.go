package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	etcdName = "etcd"

	etcdSettings = "client v3.7.3, concurrency.Mutex, a session with a TTL of 15s for each waiter; its data in memory (/dev/shm) if the machine has that, since Redis persists nothing here"
)

// etcd is an etcd server for this run, with its data in a folder of its own. It starts when a
// contender first asks for it.
type etcd struct {
	URL string // of the server for clients; set in a child process

	once   sync.Once
	err    error
	folder string
	server *exec.Cmd
}

// address returns the server's URL.
func (e *etcd) address(ctx context.Context) (string, error) {
	e.once.Do(func() {
		if e.URL == "" {
			e.err = e.start(ctx)
		}
	})
	return e.URL, e.err
}

func (e *etcd) start(ctx context.Context) error {
	program, err := exec.LookPath("etcd")
	if err != nil {
		return fmt.Errorf("%w: there is no etcd on this machine (Debian: etcd-server)", errNotHere)
	}
	inMemory := "/dev/shm"
	if _, err := os.Stat(inMemory); err != nil {
		inMemory = ""
	}
	if e.folder, err = os.MkdirTemp(inMemory, "benchmarks-etcd"); err != nil {
		return err
	}
	var urls [2]string // for clients, and for other servers, of which there are none
	for i := range urls {
		port, err := freePort()
		if err != nil {
			return err
		}
		urls[i] = fmt.Sprint("http://127.0.0.1:", port)
	}
	e.server = exec.Command(program, "--name", "benchmarks", "--data-dir", filepath.Join(e.folder, "data"),
		"--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
		"--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", "benchmarks="+urls[1])
	e.server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process, which ends the server
	if err := e.server.Start(); err != nil {
		return err
	}
	if err := answers(ctx, urls[0]+"/health"); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	e.URL = urls[0]
	return nil
}

// answers waits until a server answers a request.
func answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// stop ends the server, and removes its folder.
func (e *etcd) stop() {
	if e.server != nil && e.server.Process != nil {
		_ = e.server.Process.Kill() // nothing is kept
		_ = e.server.Wait()
	}
	if e.folder != "" {
		_ = os.RemoveAll(e.folder)
	}
}

// etcdLocks is the Mutex of go.etcd.io/etcd/client/v3/concurrency. A Mutex excludes sessions from
// one another, and not the callers within one, so each waiter has a session while it waits for a
// lock or holds it.
type etcdLocks struct {
	*clientv3.Client

	mu   sync.Mutex
	idle []*concurrency.Session // guarded by mu
}

func newEtcdLocks(s setup) (contender, error) {
	url, err := s.Etcd.address(context.Background())
	if err != nil {
		return nil, err
	}
	config := clientv3.Config{Endpoints: []string{url}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()}
	if s.sent != nil {
		config.DialOptions = []grpc.DialOption{grpc.WithStatsHandler(countedCalls{s.sent})}
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, err
	}
	return &etcdLocks{Client: client}, nil
}

func (l *etcdLocks) Lock(ctx context.Context, name string) (unlock, error) {
	session, err := l.take()
	if err != nil {
		return nil, err
	}
	mutex := concurrency.NewMutex(session, key(name))
	if err := mutex.Lock(ctx); err != nil {
		l.giveBack(session)
		return nil, err
	}
	return func(ctx context.Context) error {
		defer l.giveBack(session)
		return mutex.Unlock(ctx)
	}, nil
}

// take returns a session that no other caller uses.
func (l *etcdLocks) take() (*concurrency.Session, error) {
	l.mu.Lock()
	if last := len(l.idle) - 1; last >= 0 {
		defer l.mu.Unlock()
		session := l.idle[last]
		l.idle = l.idle[:last]
		return session, nil
	}
	l.mu.Unlock()
	return concurrency.NewSession(l.Client, concurrency.WithTTL(int(ttl/time.Second)))
}

// giveBack keeps a session for the next caller unless its lease has ended.
func (l *etcdLocks) giveBack(session *concurrency.Session) {
	select {
	case <-session.Done():
	default:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.idle = append(l.idle, session)
	}
}

// Close ends the sessions, which removes what they have left.
func (l *etcdLocks) Close() error {
	var errs []error
	for _, session := range l.idle {
		errs = append(errs, session.Close())
	}
	return errors.Join(append(errs, l.Client.Close())...)
}
