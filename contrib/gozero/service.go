// Package gozero runs Sluice in a service of go-zero: [ServiceContext] has a Redis client and a
// Locker by go-zero's configuration, [Service] runs a Worker or a Pool in a service.ServiceGroup,
// and [Logger] writes their log by logx. docs/gozero.md has the order in which all of that stops.
package gozero

import (
	"cmp"
	"context"
	"time"

	"github.com/zeromicro/go-zero/core/logx"
)

// Runner is a *sluice.Worker, a *sluice.Pool, or what else runs until its context ends.
type Runner interface {
	Run(ctx context.Context) error
}

// Service is a service.Service that runs a Runner. Use NewService. It is safe for concurrent use.
type Service struct {
	runner  Runner
	ctx     context.Context // Start has none
	cancel  context.CancelFunc
	running chan struct{} // has an element while Start runs
}

// NewService returns a service that runs a Runner, once: after Stop, Start does nothing.
func NewService(runner Runner) *Service {
	s := &Service{runner: runner, running: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Start blocks until the Runner has returned, which it does after Stop. An error that it then
// returns, such as an *sluice.UnfinishedError, is logged. An error without a Stop, such as
// sluice.ErrInvalid, is logged too, and is a panic, as in go-zero's own servers: otherwise the
// service would go on without its Worker.
func (s *Service) Start() {
	s.running <- struct{}{}
	defer func() { <-s.running }()
	if s.ctx.Err() != nil {
		return
	}
	err := s.runner.Run(s.ctx)
	if err == nil {
		return
	}
	logx.Errorw("sluice: the service has ended with an error", logx.Field("error", err.Error()))
	if s.ctx.Err() == nil {
		panic(err)
	}
}

// Stop has the Runner stop, and waits until Start has returned: of a Worker, for as long as its
// Grace and a second at most. It may be called again, and before Start, which then returns at once.
func (s *Service) Stop() {
	s.cancel()
	s.running <- struct{}{}
	<-s.running
}

// Grace returns the longest Grace of a Worker or a Pool that stops before go-zero kills the process.
// Its arguments are the WrapUpTime and the WaitTime of the service's Shutdown configuration; as
// there, 0 means one second and 5.5 seconds. Handlers have a second after Grace, and what they
// return has half a second to be reported. If WaitTime leaves nothing, it is one millisecond.
func Grace(wrapUp, wait time.Duration) time.Duration {
	left := cmp.Or(wait, 5500*time.Millisecond) - cmp.Or(wrapUp, time.Second)
	return max(left-1500*time.Millisecond, time.Millisecond)
}
