// Command sluice looks into the queues and locks of a Redis and mends them, from a shell.
//
// Everything that it prints of names, IDs, reasons and payloads is escaped; it never prints a
// lock's token, and payloads only where --payload asks for them. docs/operator.md describes it, and
// plays an incident.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

func main() {
	debug.SetGCPercent(50) // beside what it looks at, a tool takes little memory rather than little time
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	logging.Disable() // what go-redis logs, the commands' own errors say
	slog.SetDefault(slog.New(slog.DiscardHandler))
	a := &app{
		in: os.Stdin, out: &output{Writer: os.Stdout}, errOut: os.Stderr, lookupEnv: os.LookupEnv,
		interactive: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())),
		outIsTTY:    term.IsTerminal(int(os.Stdout.Fd())), errIsTTY: term.IsTerminal(int(os.Stderr.Fd())),
	}
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// app is one call of the program: what surrounds it, and its settings.
type app struct {
	in        io.Reader
	out       *output
	errOut    io.Writer
	lookupEnv func(name string) (string, bool)
	// interactive says that the caller can be asked; outIsTTY and errIsTTY where text goes to.
	interactive, outIsTTY, errIsTTY bool
	// whole says that tables are not cut to the width of the terminal.
	whole bool

	url          string
	server       inspect.Server
	passwordFile string
	lockPrefix   string
	queuePrefix  string
	json         bool
	quoted       bool
	progress     string
	timeout      time.Duration

	options inspect.Options
	rdb     redis.UniversalClient
	cancel  context.CancelFunc
}

// run carries out a command line, and returns the program's exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.command(args)
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	err := root.ExecuteContext(ctx)
	if a.cancel != nil {
		a.cancel()
	}
	if a.rdb != nil {
		_ = a.rdb.Close()
	}
	if err == nil {
		err = a.out.failed
	}
	if err == nil {
		return exitOK
	}
	code, text := a.explain(ctx, err)
	if text != "" {
		_, _ = fmt.Fprintln(a.errOut, text)
	}
	return code
}

const about = `sluice looks into the queues and locks of a Redis, and mends them.

The server is named by --url or SLUICE_URL. Every setting that has a flag here can
stand in the environment instead: --queue-prefix is SLUICE_QUEUE_PREFIX. Passwords have no
flag, since others can see those: write SLUICE_PASSWORD, SLUICE_SENTINEL_PASSWORD, or
--password-file.

Exit codes: 0 done; 1 failed, as where the output cannot be written; 2 wrong usage; 3 not found; 4 not confirmed, nothing done;
5 the server cannot be reached, nothing done; 6 a reply was lost, so that it is not known
what was done; 7 the server denies it.`

// command returns all commands, for a command line.
func (a *app) command(args []string) *cobra.Command {
	root := &cobra.Command{
		Use: "sluice", Short: "Look into the queues and locks of a Redis, and mend them", Long: about,
		SilenceUsage: true, SilenceErrors: true, Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c == root && len(args) > 0 && !strings.HasPrefix(args[0], "-") { // task ls --queue=orders: the first word is wrong, not the flag
			return noSuchCommand(root, args)
		}
		return usageError{err}
	})
	root.CompletionOptions.DisableDefaultCmd = false
	a.addSettings(root.PersistentFlags())
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.readSettings(cmd) }
	for _, group := range []*cobra.Group{{ID: "look", Title: "Look:"}, {ID: "tasks", Title: "Tasks:"}, {ID: "queues", Title: "Whole queues:"}, {ID: "locks", Title: "Locks:"}} {
		root.AddGroup(group)
	}
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("look", a.topCommand(), a.queuesCommand(), a.workersCommand(), a.lsCommand(), a.getCommand(), a.periodicCommand())
	add("tasks", a.cancelCommand(), a.runCommand(), a.delayCommand(), a.buryCommand(), a.reviveCommand(), a.dropCommand(), a.enqueueCommand(), a.moveCommand(), a.exportCommand(), a.importCommand())
	add("queues", a.pauseCommand(), a.drainCommand(), a.resumeCommand(), a.limitCommand(), a.stockCommand(), a.purgeCommand())
	add("locks", a.locksCommand(), a.lockCommand(), a.unlockCommand())
	root.AddCommand(a.serveCommand(), a.exporterCommand(), a.aclCommand(), a.versionCommand())
	a.completeAll(root)
	return root
}

func (a *app) addSettings(f *pflag.FlagSet) {
	f.StringVar(&a.url, "url", "redis://localhost:6379", "the server: redis://[user@]host[:port][,host...][/db], rediss:// for TLS, unix:///path")
	f.StringVar(&a.server.Username, "username", "", "the ACL user")
	f.StringVar(&a.passwordFile, "password-file", "", "a file that holds the user's password")
	f.BoolVar(&a.server.Cluster, "cluster", false, "the host is a node of a Cluster (found out where it is not said; several hosts always are, without --sentinel-master)")
	f.StringVar(&a.server.SentinelMaster, "sentinel-master", "", "the hosts are sentinels, and this is their name for the primary")
	f.StringVar(&a.server.SentinelUsername, "sentinel-username", "", "the ACL user on the sentinels")
	f.StringVar(&a.server.CAFile, "tls-ca", "", "PEM file of the authorities to trust instead of the system's")
	f.StringVar(&a.server.CertFile, "tls-cert", "", "PEM file of a client certificate")
	f.StringVar(&a.server.KeyFile, "tls-key", "", "PEM file of its key")
	f.StringVar(&a.server.ServerName, "tls-server-name", "", "the name in the server's certificate, where it is not the host")
	f.StringVar(&a.lockPrefix, "lock-prefix", "Lock:", "what the keys of locks begin with")
	f.StringVar(&a.queuePrefix, "queue-prefix", "Queue:", "what the keys of queues begin with")
	f.IntVar(&a.options.MaxKeys, "max-keys", 0, "how many keys of each primary a search looks at, at the most (0: 20 million)")
	f.BoolVar(&a.json, "json", false, "print JSON")
	f.BoolVar(&a.quoted, "quoted", false, `names and IDs are given as they are printed: "a\nb" is a, a line's end and b`)
	f.StringVar(&a.progress, "progress", "auto", "show progress of long work: auto (on a terminal), always, never")
	f.DurationVar(&a.timeout, "timeout", 0, "give up after this time (0: never; each command to the server has 5 s)")
}

// readSettings completes the settings: from the environment, and from files.
func (a *app) readSettings(cmd *cobra.Command) error {
	var failed error
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		name := "SLUICE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value, ok := a.lookupEnv(name); ok && !f.Changed && f.Name != "help" {
			if err := f.Value.Set(value); err != nil {
				failed = usagef("%s in the environment is not valid for --%s", name, f.Name) // the value may be a secret
			}
		}
	})
	if failed != nil {
		return failed
	}
	if a.progress != "auto" && a.progress != "always" && a.progress != "never" {
		return usagef("--progress is auto, always or never")
	}
	a.server.Password, _ = a.lookupEnv("SLUICE_PASSWORD")
	a.server.SentinelPassword, _ = a.lookupEnv("SLUICE_SENTINEL_PASSWORD")
	if a.passwordFile != "" {
		text, err := os.ReadFile(a.passwordFile)
		if err != nil {
			return usageError{err}
		}
		a.server.Password = strings.TrimRight(string(text), "\r\n")
	}
	a.options.LockPrefix, a.options.QueuePrefix = orNone(a.lockPrefix), orNone(a.queuePrefix)
	ctx, cancel := context.WithCancel(cmd.Context())
	if a.timeout > 0 {
		ctx, cancel = context.WithTimeout(cmd.Context(), a.timeout)
	}
	a.cancel = cancel
	cmd.SetContext(ctx)
	return nil
}

func orNone(prefix string) string {
	if prefix == "" {
		return inspect.NoPrefix
	}
	return prefix
}

// connect returns the client. A node of a Cluster is asked as such, although it was not said.
func (a *app) connect(ctx context.Context) (redis.UniversalClient, error) {
	if a.rdb != nil {
		return a.rdb, nil
	}
	rdb, err := inspect.Connect(a.url, a.server)
	if err == nil && inspect.IsClusterNode(ctx, rdb, a.options) {
		_ = rdb.Close()
		a.server.Cluster = true
		rdb, err = inspect.Connect(a.url, a.server)
	}
	if errors.Is(err, inspect.ErrURL) {
		return nil, usageError{fmt.Errorf("--url or SLUICE_URL (and SLUICE_USERNAME, SLUICE_PASSWORD): %w", err)}
	}
	if err != nil {
		return nil, usageError{err}
	}
	a.rdb = rdb
	return rdb, nil
}
