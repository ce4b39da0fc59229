package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// The exit codes; see about.
const (
	exitOK = iota
	exitFailed
	exitUsage
	exitNotFound
	exitNotConfirmed
	exitUnavailable
	exitUnknown
	exitDenied
)

// usageError is a wrong command line or setting.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// localError is what this machine refuses, and not the server.
type localError struct{ error }

func (e localError) Unwrap() error { return e.error }

// usageArgs makes what cobra says of arguments a usageError.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w\nusage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

// noSuchCommand is for the program itself, which is called with commands alone.
func noSuchCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef("unknown command %s%s", show(args[0]), didYouMean(root, args[0]))
}

// destructive are commands that no typo leads to: they change what is not named again.
var destructive = []string{"cancel", "drop", "enqueue", "import", "move", "purge", "unlock"}

// didYouMean names the commands below c that are like a word, at the end of a sentence.
func didYouMean(c *cobra.Command, word string) string {
	c.SuggestionsMinimumDistance = 2
	likely := slices.DeleteFunc(c.SuggestionsFor(word), func(name string) bool { return slices.Contains(destructive, name) })
	if word == "" || len(likely) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(slices.Compact(likely), " or ") + "?"
}

var (
	errNotConfirmed = errors.New("not confirmed: nothing was done")
	errNotFound     = errors.New("not found")
)

// notPausedError says that tasks are not moved, because a queue hands them out.
type notPausedError struct{ queue string }

func (e notPausedError) Error() string {
	return fmt.Sprintf("the queue %s hands tasks out: pause it (without --for), move, and resume it", show(e.queue))
}

// partError is what ended a command that had done something before.
type partError struct{ error }

func (e partError) Unwrap() error { return e.error }

// explain returns the exit code of an error, and the text for the operator: what went wrong,
// escaped, and what to do about it.
func (a *app) explain(ctx context.Context, err error) (code int, text string) {
	code, hint := a.advice(ctx, err)
	text = "sluice: " + report.Escape(strings.TrimPrefix(err.Error(), "sluice: "))
	if hint != "" {
		text += "\n" + hint
	}
	return code, text
}

// advice returns the exit code of an error and what to do about it.
func (a *app) advice(ctx context.Context, err error) (code int, hint string) {
	var usage usageError
	var local localError
	var part partError
	var notPaused notPausedError
	switch {
	case errors.As(err, &part):
		code, hint = a.advice(ctx, part.error)
		if code == exitUnavailable || code == exitNotConfirmed { // they say that nothing was done
			code, hint = exitFailed, strings.TrimSpace(hint+" What was done before stays done.")
		}
		return code, hint
	case errors.As(err, &local):
		return exitFailed, "What was done before stays done."
	case errors.As(err, &usage):
		return exitUsage, "sluice help, or --help behind a command, says more."
	case errors.Is(err, errNotFound):
		return exitNotFound, ""
	case errors.Is(err, errNotConfirmed), errors.As(err, &notPaused):
		return exitNotConfirmed, ""
	case errors.Is(err, sluice.ErrNotFound):
		return exitNotFound, "It may have been finished meanwhile. IDs that are printed in quotation marks have to be given back with --quoted."
	case errors.Is(err, sluice.ErrInvalid):
		return exitUsage, ""
	case errors.Is(err, inspect.ErrIncomplete):
		return exitFailed, "What was found is shown. --max-keys lets the search go on for longer."
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && a.timeout > 0:
		return exitFailed, "--timeout has ended it. What was done before stays done."
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return exitFailed, "Interrupted. What was done before stays done."
	}
	return a.adviceOnServer(err)
}

// adviceOnServer is for what the server or the network said.
func (a *app) adviceOnServer(err error) (code int, hint string) {
	text := err.Error()
	has := func(words ...string) bool {
		for _, word := range words {
			if strings.Contains(text, word) {
				return true
			}
		}
		return false
	}
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var record tls.RecordHeaderError
	switch {
	case has("WRONGPASS", "NOAUTH", "invalid password"):
		return exitDenied, "Set SLUICE_USERNAME and SLUICE_PASSWORD (or --username and --password-file) to a user of this server."
	case has("NOPERM", "can't run this command", "ACL failure in script", "can't access at least one of the keys"):
		return exitDenied, "The user lacks a right. sluice acl prints the rule that reading needs, sluice acl --write the one for all commands: an administrator sets it."
	case errors.As(err, &authority):
		return exitUnavailable, "Name the authority that has signed the server's certificate with --tls-ca."
	case errors.As(err, &host):
		return exitUnavailable, "The certificate is for another host: see --tls-server-name."
	case errors.As(err, &record):
		return exitUnavailable, "The server does not speak TLS here: write redis:// instead of rediss://, or another port."
	case has("MOVED "):
		return exitFailed, "The server belongs to a Cluster: add --cluster."
	case has("unknown command", "cluster support disabled") && a.server.SentinelMaster == "":
		return exitFailed, "Is this a Sentinel? Then add --sentinel-master, with its name for the primary."
	case has("CROSSSLOT"):
		return exitFailed, "Queues of this prefix do not fit a Cluster."
	case errors.Is(err, sluice.ErrUnknown):
		return exitUnknown, "The command may have been carried out or not: look before you repeat it."
	case errors.Is(err, sluice.ErrCorrupt), has("WRONGTYPE"):
		return exitFailed, "The key holds what this library has not written: is it the right --queue-prefix or --lock-prefix?"
	case has("OOM "):
		return exitUnavailable, "The server is full (maxmemory)."
	case errors.Is(err, sluice.ErrUnavailable) || isNetwork(err) || has("all sentinels", "LOADING", "CLUSTERDOWN", "MASTERDOWN"):
		return exitUnavailable, fmt.Sprintf("No server could serve this: %s. Is --url (SLUICE_URL) right, and is TLS expected there (rediss://)?", a.where())
	}
	return exitFailed, ""
}

// isNetwork reports whether a connection has failed. A net.Error would not do: every error of the
// operating system is one.
func isNetwork(err error) bool {
	var operation *net.OpError
	var name *net.DNSError
	return errors.As(err, &operation) || errors.As(err, &name) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, redis.ErrPoolTimeout) || strings.Contains(err.Error(), "EOF")
}

// where names the server, without user or password.
func (a *app) where() string {
	_, rest, _ := strings.Cut(a.url, "://")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = rest[at+1:]
	}
	if a.server.SentinelMaster != "" {
		return fmt.Sprintf("%s behind the sentinels %s", show(a.server.SentinelMaster), show(rest))
	}
	return show(rest)
}
