package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/sluice/web"
)

func (a *app) serveCommand() *cobra.Command {
	var addr string
	var write bool
	var hosts []string
	c := &cobra.Command{
		Use: "serve", Short: "Serve the operator's page",
		Long: `Serve the operator's page, until it is interrupted. It asks no visitor for a password: on another address than
loopback, put it behind what does. Without --write it changes nothing.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return usagef("--addr is HOST:PORT, such as 127.0.0.1:8080")
			}
			if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
				_, _ = fmt.Fprintf(a.errOut, "Note: %s can be reached from other machines, and the page asks for no password.\n", show(addr))
			}
			rdb, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			page, err := web.New(rdb, web.Options{
				LockPrefix: a.options.LockPrefix, QueuePrefix: a.options.QueuePrefix, Write: write, Hosts: hosts,
				Logger: slog.New(slog.NewTextHandler(a.errOut, nil)),
			})
			if err != nil {
				return err
			}
			return a.serve(cmd.Context(), addr, page)
		},
	}
	c.Flags().StringVar(&addr, "addr", "127.0.0.1:8080", "where to listen")
	c.Flags().BoolVar(&write, "write", false, "let visitors change queues, tasks and locks")
	c.Flags().StringSliceVar(&hosts, "host", nil, "the names under which visitors ask for the page, where that is not localhost or an address")
	return c
}

// newServer returns a server that waits for no visitor for long: not for its request, nor until it
// reads the answer.
func newServer(page http.Handler) *http.Server {
	return &http.Server{Handler: page, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute}
}

// serve serves a page until ctx ends.
func (a *app) serve(ctx context.Context, addr string, page http.Handler) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return localError{fmt.Errorf("--addr: %w", err)}
	}
	_, _ = fmt.Fprintf(a.errOut, "Serving http://%s/\n", listener.Addr())
	server := newServer(page)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if err := server.Shutdown(patience); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
