package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// programEnv makes this test binary a process of the shop, by the JSON that it holds.
const programEnv = "SALE_PROGRAM"

func TestMain(m *testing.M) {
	spec, isProgram := os.LookupEnv(programEnv)
	if !isProgram {
		redistest.Main(m)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { // ends with the program
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends it, or dies
		stop()
	}()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	var c config
	err := json.Unmarshal([]byte(spec), &c)
	if err == nil {
		err = process(ctx, os.Stdout, c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sale:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// service is what the two adapters have in common.
type service interface {
	start() error
	stop() error
}

type goZero struct {
	*GoZero
	failed chan error
}

func (g goZero) start() error { g.Start(); return <-g.failed }
func (g goZero) stop() error  { g.Stop(); return nil }

type kratos struct{ *Kratos }

func (k kratos) start() error { return k.Start(context.Background()) }
func (k kratos) stop() error  { return k.Stop(context.Background()) }

func TestAdapters_StopWaitsForTheFunction(t *testing.T) {
	t.Parallel()
	errEnded := errors.New("ended")
	for name, adapt := range map[string]func(func(context.Context) error) service{
		"go-zero": func(run func(context.Context) error) service {
			failed := make(chan error, 1)
			return goZero{NewGoZero(run, func(err error) { failed <- err }), failed}
		},
		"kratos": func(run func(context.Context) error) service { return kratos{NewKratos(run)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began, ended, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			s := adapt(func(ctx context.Context) error {
				close(began)
				<-ctx.Done()
				time.Sleep(50 * time.Millisecond) // a handler that is not done yet
				close(ended)
				return errEnded
			})
			go func() { result <- s.start() }()
			<-began
			require.NoError(t, s.stop())
			select {
			case <-ended:
			default:
				t.Error("Stop has not waited")
			}
			require.ErrorIs(t, <-result, errEnded)

			early := adapt(func(ctx context.Context) error { <-ctx.Done(); return errEnded })
			stopped := make(chan error, 1)
			go func() { stopped <- early.stop() }()
			require.ErrorIs(t, early.start(), errEnded)
			require.NoError(t, <-stopped)
		})
	}
}
