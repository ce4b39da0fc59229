package shophttp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"
)

// childEnv holds the assignment of a child process, as JSON.
const childEnv = "SECKILL_HTTP_CHILD"

// assignment is what a process of the service, or of the load generator, needs to know.
type assignment struct {
	Method    string
	Redis     string // address
	DB        string // file
	Run       string // name of the queue
	Stock     int    // units for sale
	PayWithin time.Duration

	// Of a process of the load generator; no URL for one of the service.
	URL                   string
	Requests, Connections int
	First, Customers      int
}

// site returns what the process sells on.
func (a assignment) site(rdb *redis.Client, db *Store) Site {
	return Site{Redis: rdb, Store: db, Name: a.Run, Stock: a.Stock, PayWithin: a.PayWithin}
}

// report is what a process has to say since its last report, except for UnderWay, which is now.
type report struct {
	UnderWay, Transactions                     int64     `json:",omitempty"` // of the service
	Requests, Sold, Paid, Failed, Broken, Hung int64     `json:",omitempty"` // of the load generator
	Times                                      histogram `json:",omitempty"`
}

// RunChild is for the beginning of main, and of TestMain: in a process that Hold started it does
// that process's work, and does not return. The ways to sell are those of this package's caller.
func RunChild(ways map[string]OpenWay) {
	spec, ok := os.LookupEnv(childEnv)
	if !ok {
		return
	}
	signal.Ignore(os.Interrupt) // the parent gets it too, and ends its children
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // the input ends with the parent
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := work(ctx, spec, ways); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "seckill child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func work(ctx context.Context, spec string, ways map[string]OpenWay) error {
	var a assignment
	if err := json.Unmarshal([]byte(spec), &a); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	say := func(r report) { _ = out.Encode(r) }
	if a.URL != "" {
		return generate(ctx, a, say)
	}
	file := os.NewFile(3, "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		return err
	}
	_ = file.Close()
	return serve(ctx, a, listener, ways, say)
}

// child is a process of the service or of the load generator.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ready chan struct{} // closed at the first report
	ended chan struct{} // closed at the end
	err   error         // of its end
}

// start starts a process, and calls hear with its reports. A process of the service inherits the
// listener, which stays open here: while a process is replaced, the others answer for it.
func start(a assignment, listener *os.File, hear func(report)) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(exe), ready: make(chan struct{}), ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	c.cmd.Stderr = os.Stderr
	if listener != nil {
		c.cmd.ExtraFiles = []*os.File{listener}
	}
	stdin, err1 := c.cmd.StdinPipe()
	stdout, err2 := c.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, c.cmd.Start()); err != nil {
		return nil, err
	}
	c.stdin = stdin
	go c.listen(stdout, hear)
	return c, nil
}

func (c *child) listen(stdout io.Reader, hear func(report)) {
	defer close(c.ended)
	first := true
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue
		}
		hear(r)
		if first {
			close(c.ready)
			first = false
		}
	}
	c.err = c.cmd.Wait()
}

// stop ends the process in order, or kills it if that takes long.
func (c *child) stop() {
	_ = c.stdin.Close()
	select {
	case <-c.ended:
	case <-time.After(15 * time.Second):
		c.kill()
	}
}

// kill ends the process at once, as kill -9 does.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}
