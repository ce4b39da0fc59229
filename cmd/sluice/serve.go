package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/sluice/exporter"
	"github.com/sluice-go/sluice/cmd/sluice/web"
)

// listening says where a server listens, and who may ask it.
type listening struct {
	addr      string
	cert, key string // of TLS
	users     string // the file of those who may ask
	header    string // in which a proxy in front names the user
}

func (l *listening) addTo(f *pflag.FlagSet, addr string) {
	f.StringVar(&l.addr, "addr", addr, "where to listen")
	f.StringVar(&l.cert, "serve-cert", "", "PEM file of the server's certificate: it speaks TLS then")
	f.StringVar(&l.key, "serve-key", "", "PEM file of its key")
	f.StringVar(&l.users, "users", "", "a file of those who may ask, with passwords, as htpasswd -B writes it; /healthz asks for none")
}

// serveOptions are the flags of serve.
type serveOptions struct {
	listening
	exporter.Options
	write  bool
	hosts  []string
	prefix string
}

func (a *app) serveCommand() *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use: "serve", Short: "Serve the operator's page, metrics and a JSON API",
		Long: `Serve the operator's page, until it is interrupted. Without --write it changes nothing.

Beside the page there are /metrics for Prometheus, /healthz (200 if Redis answers, else 503), and /api/queues and /api/queues/NAME,
which have in JSON what sluice queues --json prints: for autoscalers and scripts.

It asks no visitor for a password, unless --users names a file of users, or --user-header the header in which a proxy in front says who
the visitor is: requests without it are refused, and nothing but the proxy must reach the server, since others could send it, too. The log of
changes has the user's name.`,
		Example: `  sluice serve --write
  sluice serve --addr :8443 --host ops.example --serve-cert cert.pem --serve-key key.pem --users users --write
  sluice serve --addr :8080 --host shop.example --prefix /ops --user-header X-Forwarded-User`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.servePage(cmd.Context(), o) },
	}
	f := c.Flags()
	o.addTo(f, "127.0.0.1:8080")
	f.StringVar(&o.header, "user-header", "", "the request header in which a proxy in front names the user, such as X-Forwarded-User")
	f.BoolVar(&o.write, "write", false, "let visitors change queues, tasks and locks")
	f.StringSliceVar(&o.hosts, "host", nil, "the names under which visitors ask for the page, where that is not localhost or an address")
	f.StringVar(&o.prefix, "prefix", "", "the path below which all is served, such as /ops, behind a proxy that does not take it off")
	f.BoolVar(&o.Stock, "stock", false, "have /metrics tell of each item for sale")
	return c
}

func (a *app) servePage(ctx context.Context, o serveOptions) error {
	guard, err := o.check()
	if err != nil {
		return err
	}
	if guard == nil && !isLoopback(o.addr) {
		_, _ = fmt.Fprintf(a.errOut, "Note: %s can be reached from other machines, and the page asks for no password: see --users.\n", show(o.addr))
	}
	rdb, err := a.connect(ctx)
	if err != nil {
		return err
	}
	o.Keys = a.options
	beside, tells := map[string]http.Handler{}, exporter.New(rdb, o.Options)
	for _, path := range exporter.Paths() {
		beside["GET "+path] = tells
	}
	page, err := web.New(rdb, web.Options{
		LockPrefix: a.options.LockPrefix, QueuePrefix: a.options.QueuePrefix, Prefix: o.prefix, Write: o.write, Hosts: o.hosts,
		Logger: slog.New(slog.NewTextHandler(a.errOut, nil)), User: userOf, Beside: beside,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { page.Watch(ctx) }) // it ends with ctx; Wait waits for it
	defer watching.Wait()
	defer stop()
	return a.serve(ctx, o.listening, o.prefix, protect(page, guard, o.prefix+"/healthz"))
}

func (a *app) exporterCommand() *cobra.Command {
	var l listening
	var o exporter.Options
	c := &cobra.Command{
		Use: "exporter", Short: "Serve metrics and the JSON API alone, without the page",
		Long: `Serve /metrics, /healthz and /api/queues as sluice serve does, and no page, until it is interrupted. The metrics have the names that
OpenTelemetry's exporter gives to what sluiceotel observes, for all queues that it finds.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			guard, err := l.check()
			if err != nil {
				return err
			}
			rdb, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			o.Keys = a.options
			return a.serve(cmd.Context(), l, "", protect(exporter.New(rdb, o), guard, "/healthz"))
		},
	}
	l.addTo(c.Flags(), "127.0.0.1:9478")
	c.Flags().BoolVar(&o.Stock, "stock", false, "tell of each item for sale, too")
	c.Flags().DurationVar(&o.Search, "search", 30*time.Second, "search the keys for new queues after this time, or twenty times what a search takes")
	return c
}

// check checks the settings, and returns who may ask; nil for every visitor.
func (l *listening) check() (guard, error) {
	if _, _, err := net.SplitHostPort(l.addr); err != nil {
		return nil, usagef("--addr is HOST:PORT, such as 127.0.0.1:8080")
	}
	switch {
	case (l.cert == "") != (l.key == ""):
		return nil, usagef("--serve-cert and --serve-key go together")
	case l.users != "" && l.header != "":
		return nil, usagef("either --users or --user-header says who may ask")
	case l.users != "":
		return readUsers(l.users)
	case l.header != "":
		return byHeader(l.header), nil
	}
	return nil, nil
}

func isLoopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// newServer returns a server that waits for no visitor for long: not for its request, nor until it
// reads the answer.
func newServer(page http.Handler) *http.Server {
	return &http.Server{Handler: page, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute}
}

// serve serves until ctx ends.
func (a *app) serve(ctx context.Context, l listening, prefix string, handler http.Handler) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", l.addr)
	if err != nil {
		return localError{fmt.Errorf("--addr: %w", err)}
	}
	server, scheme := newServer(handler), "http"
	server.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(a.errOut, nil), slog.LevelWarn)
	run := func() error { return server.Serve(listener) }
	if l.cert != "" {
		scheme = "https"
		run = func() error { return server.ServeTLS(listener, l.cert, l.key) }
	}
	_, _ = fmt.Fprintf(a.errOut, "Serving %s://%s%s/\n", scheme, listener.Addr(), prefix)
	ended := make(chan error, 1)
	go func() { ended <- run() }() // it ends with the server, which is shut down below
	select {
	case err := <-ended:
		return localError{err}
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if err := server.Shutdown(patience); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
