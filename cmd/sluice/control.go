package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// queueResultJSON is what a command on whole queues did, in JSON.
type queueResultJSON struct {
	Action      string `json:"action"`
	Queue       string `json:"queue"`
	QueueBase64 string `json:"queue_base64,omitempty"`
	DryRun      bool   `json:"dry_run"`
	Due         int64  `json:"due"`
	Scheduled   int64  `json:"scheduled"`
	Leased      int64  `json:"leased"`
	Dead        int64  `json:"dead"`
	Done        int64  `json:"done"`
	Error       string `json:"error,omitempty"` // why it was not done, or why there are no figures
}

// queueArgs returns the queues that a command is for: those that are named, or all that match.
func (a *app) queueArgs(ctx context.Context, t targets, args []string) ([]string, error) {
	switch {
	case (t.match == "") == (len(args) == 0):
		return nil, usagef("name the queues, or say --match for all whose names match")
	case t.match == "":
		return args, nil
	}
	queues, err := a.queuesMeant(ctx, t, nil)
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = q.Name()
		if a.quoted {
			names[i] = show(q.Name())
		}
	}
	return names, err
}

// deed is what is done to whole queues.
type deed struct {
	verb, done string
	dryRun     bool
	unread     bool // it is done also where nothing can be said of the queue
}

// control carries something out on whole queues, one after the other, and says what they held. A
// queue that cannot be read, or changed, does not keep it from the others; its error is returned at
// the end. A server that cannot be reached ends it.
func (a *app) control(ctx context.Context, names []string, what deed, do func(q *sluice.Queue, name string, s sluice.Stats) error) error {
	results, failed, done := []queueResultJSON{}, []error{}, false
	for _, argument := range names {
		q, name, err := a.open(ctx, argument)
		var s sluice.Stats
		if err == nil {
			s, err = q.Stats(ctx)
		}
		if q != nil && !what.dryRun && (err == nil || what.unread) {
			failed := do(q, name, s)
			done, err = done || failed == nil, errors.Join(err, failed)
		}
		r := queueResultJSON{Action: what.verb, DryRun: what.dryRun, Due: s.Due, Scheduled: s.Scheduled, Leased: s.Leased, Dead: s.Dead, Done: s.Done}
		r.Queue, r.QueueBase64 = report.Bytes(name)
		if err != nil {
			failed = append(failed, err)
			r.Error = report.Escape(err.Error())
		}
		results = append(results, r)
		if ctx.Err() != nil || errors.Is(err, sluice.ErrUnavailable) || errors.Is(err, sluice.ErrUnknown) {
			break // the next one would wait as long for the same server
		}
		if err != nil || a.json {
			continue
		}
		said := what.done
		if what.dryRun {
			said = "would be " + said
		}
		_, _ = fmt.Fprintf(a.out, "%s: %s (%s)\n", show(name), said, statsText(s))
	}
	if a.json {
		failed = append(failed, report.Print(a.out, results))
	}
	err := errors.Join(failed...)
	if err != nil && done {
		return partError{err}
	}
	return err
}

func statsText(s sluice.Stats) string {
	text := fmt.Sprintf("due %s, scheduled %s, leased %s, dead %s", inspect.Count(s.Due), inspect.Count(s.Scheduled), inspect.Count(s.Leased), inspect.Count(s.Dead))
	if s.Done > 0 {
		text += ", done " + inspect.Count(s.Done)
	}
	return text
}

func (a *app) pauseCommand() *cobra.Command {
	var wait time.Duration
	var dryRun bool
	var t targets
	c := &cobra.Command{
		Use: "pause QUEUE...", Short: "Have no worker take tasks of a queue",
		Long: `Have no worker take tasks of a queue, until resume or for a time. Tasks under way go on, and what is enqueued
waits.`,
		Example: `  sluice pause orders mails
  sluice pause --match 'shop/*' --for 10m`,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := a.queueArgs(cmd.Context(), t, args)
			if err != nil {
				return err
			}
			if wait < 0 {
				return usagef("--for is a time from now: 90s, 10m, 24h")
			}
			done := "paused until resume"
			if wait > 0 {
				done = "paused for " + wait.String()
			}
			return a.control(cmd.Context(), args, deed{"pause", done, dryRun, true}, func(q *sluice.Queue, _ string, _ sluice.Stats) error {
				return q.Pause(cmd.Context(), wait)
			})
		},
	}
	t.addTo(c.Flags(), "")
	c.Flags().DurationVar(&wait, "for", 0, "for how long; else until resume")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	return c
}

func (a *app) drainCommand() *cobra.Command {
	var wait time.Duration
	var t targets
	c := &cobra.Command{
		Use: "drain QUEUE...", Short: "Pause queues, and wait until no task of them is leased",
		Long: `Pause queues, and wait until no task of them is leased: before a migration, or before a server is stopped. What is enqueued waits until
resume. A handler that hangs keeps its lease: --wait says for how long to wait, and the queues stay paused.`,
		Example: `  sluice drain orders mails --wait 5m
  sluice resume orders mails`,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := a.queueArgs(cmd.Context(), t, args)
			if err != nil {
				return err
			}
			ctx, end, paused := cmd.Context(), time.Now().Add(wait), false
			for _, change := range []bool{false, true} { // all are there before one is paused, and paused before the first is waited for
				for _, arg := range args {
					if err := a.pauseExisting(ctx, arg, change); err != nil && paused {
						return partError{err}
					} else if err != nil {
						return err
					}
					paused = change
				}
			}
			err = a.control(ctx, args, deed{verb: "drain", done: "drained, paused until resume"}, func(q *sluice.Queue, name string, _ sluice.Stats) error {
				return a.awaitNoLease(ctx, q, name, end, wait > 0)
			})
			if err != nil {
				return partError{err} // they are paused
			}
			return nil
		},
	}
	t.addTo(c.Flags(), "")
	c.Flags().DurationVar(&wait, "wait", 0, "for how long to wait (0: until it is so)")
	return c
}

// pauseExisting pauses a queue, or says that it is not there: a name that is wrong must not be said
// to be drained.
func (a *app) pauseExisting(ctx context.Context, arg string, change bool) error {
	q, name, err := a.open(ctx, arg)
	switch {
	case err != nil:
		return err
	case change:
		return q.Pause(ctx, 0)
	}
	exists, err := inspect.Exists(ctx, a.rdb, name, a.options)
	if err == nil && !exists {
		err = fmt.Errorf("%w: there is no queue %s, so nothing was paused", errNotFound, show(name))
	}
	return err
}

// drainEvery is how often drain looks.
const drainEvery = 250 * time.Millisecond

// awaitNoLease waits until no task of a queue is leased, or the time is over, if it is bounded.
func (a *app) awaitNoLease(ctx context.Context, q *sluice.Queue, name string, end time.Time, bounded bool) error {
	p := a.newProgress("waiting for handlers", -1)
	defer p.end()
	for {
		s, err := q.Stats(ctx)
		switch {
		case err != nil || s.Leased == 0:
			return err
		case bounded && time.Now().After(end):
			return fmt.Errorf("%s is paused, and has %s still (sluice ls %s --state leased)", show(name), inspect.Plural(s.Leased, "leased task"), show(name))
		}
		select {
		case <-time.After(drainEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *app) resumeCommand() *cobra.Command {
	var dryRun bool
	var t targets
	c := &cobra.Command{
		Use: "resume QUEUE...", Short: "Have workers take tasks of a queue that was paused",
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := a.queueArgs(cmd.Context(), t, args)
			if err != nil {
				return err
			}
			return a.control(cmd.Context(), args, deed{"resume", "resumed", dryRun, true}, func(q *sluice.Queue, _ string, _ sluice.Stats) error {
				return q.Resume(cmd.Context())
			})
		},
	}
	t.addTo(c.Flags(), "")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	return c
}

func (a *app) purgeCommand() *cobra.Command {
	var dryRun bool
	var confirm string
	c := &cobra.Command{
		Use: "purge QUEUE", Short: "Remove a queue: every task and every dead letter",
		Long: `Remove a queue: every task and every dead letter, and what is remembered of finished ones. There is no way back. The queue's
name is asked back, or is given by --confirm.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.control(cmd.Context(), args, deed{verb: "purge", done: "purged", dryRun: dryRun}, func(q *sluice.Queue, name string, s sluice.Stats) error {
				if err := a.askName(cmd.Context(), name, confirm, s); err != nil {
					return err
				}
				return q.Purge(cmd.Context())
			})
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	c.Flags().StringVar(&confirm, "confirm", "", "the queue's name again, instead of the question")
	return c
}

// askName has the caller type the queue's name.
func (a *app) askName(ctx context.Context, name, confirm string, s sluice.Stats) error {
	if confirm == "" {
		if !a.interactive {
			return fmt.Errorf("%w: that would remove all of %s (%s); add --confirm with its name", errNotConfirmed, show(name), statsText(s))
		}
		_, _ = fmt.Fprintf(a.errOut, "This will remove all of %s (%s), for good. Type its name to go on: ", show(name), statsText(s))
		var err error
		if confirm, err = a.answer(ctx); err != nil {
			return err
		}
	}
	if confirm != name && confirm != show(name) {
		return fmt.Errorf("%w: that is not the name of %s", errNotConfirmed, show(name))
	}
	return nil
}
