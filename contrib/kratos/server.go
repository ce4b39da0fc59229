// Package sluicekratos runs Sluice in an application of Kratos: [Server] runs a Worker or a Pool
// beside the application's other servers, and [Logger] writes its log by a logger of Kratos.
// docs/kratos.md has the order in which all of that stops.
package sluicekratos

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/go-kratos/kratos/v2/log"
)

// Runner is a *sluice.Worker, a *sluice.Pool, or what else runs until its context ends.
type Runner interface {
	Run(ctx context.Context) error
}

// Server is a transport.Server that runs a Runner. Use NewServer. It is safe for concurrent use.
type Server struct {
	runner  Runner
	stopped context.Context // ends with the first Stop
	stop    context.CancelFunc
	running chan struct{} // has an element while Start runs
}

// NewServer returns a server that runs a Runner, once: after Stop, Start does nothing.
func NewServer(runner Runner) *Server {
	s := &Server{runner: runner, running: make(chan struct{}, 1)}
	s.stopped, s.stop = context.WithCancel(context.Background())
	return s
}

// Start blocks until the Runner has returned, which it does after Stop or when ctx ends. Handlers
// have the values of ctx: kratos.FromContext returns the application. An error, such as
// sluice.ErrInvalid or an *sluice.UnfinishedError, ends the application, and App.Run returns it.
func (s *Server) Start(ctx context.Context) error {
	s.running <- struct{}{}
	defer func() { <-s.running }()
	if s.stopped.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopped, cancel)()
	return s.runner.Run(ctx)
}

// Stop has the Runner stop, and waits until Start has returned or ctx ends, which is an error. A
// Worker goes on after that until its Grace and a second are over: ctx does not shorten them. Stop
// may be called again, and before Start, which then returns at once.
func (s *Server) Stop(ctx context.Context) error {
	s.stop()
	select {
	case s.running <- struct{}{}:
		<-s.running
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sluice: handlers still run: %w", ctx.Err())
	}
}

// Logger returns a logger that writes by a logger of Kratos, for the Logger of a Worker or a Pool.
// The names of groups are left out: Sluice has none.
func Logger(logger log.Logger) *slog.Logger { return slog.New(handler{logger}) }

// handler is a slog.Handler.
type handler struct{ logger log.Logger }

func (handler) Enabled(context.Context, slog.Level) bool { return true } // a log.Filter decides

func (h handler) WithGroup(string) slog.Handler { return h }

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var pairs []any
	for _, a := range attrs {
		pairs = append(pairs, a.Key, a.Value.Resolve().Any())
	}
	return handler{log.With(h.logger, pairs...)}
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	pairs := []any{log.DefaultMessageKey, r.Message}
	r.Attrs(func(a slog.Attr) bool {
		pairs = append(pairs, a.Key, a.Value.Resolve().Any())
		return true
	})
	level := log.LevelDebug
	switch {
	case r.Level >= slog.LevelError:
		level = log.LevelError
	case r.Level >= slog.LevelWarn:
		level = log.LevelWarn
	case r.Level >= slog.LevelInfo:
		level = log.LevelInfo
	}
	return log.WithContext(ctx, h.logger).Log(level, pairs...)
}
