package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// limitJSON is what limit has found or done, in JSON.
type limitJSON struct {
	Queue       string         `json:"queue"`
	QueueBase64 string         `json:"queue_base64,omitempty"`
	Changed     bool           `json:"changed"` // it was told to set them or to take them away
	DryRun      bool           `json:"dry_run"`
	Limits      *report.Limits `json:"limits"`           // what they are now, or would be
	Before      *report.Limits `json:"before,omitempty"` // what was replaced
	Leased      int64          `json:"leased"`
}

// limitOptions are the flags of limit.
type limitOptions struct {
	running, burst, perGroup int
	rate                     string
	off, dryRun              bool
}

func (a *app) limitCommand() *cobra.Command {
	var o limitOptions
	c := &cobra.Command{
		Use: "limit QUEUE", Short: "Show or set how many tasks of a queue run, and at which rate they are handed out",
		Long: `Show the limits of a queue, or set them, over all processes together: how many tasks are leased at a time
(--running), and how many are handed out in a time (--rate), how many of them at once (--burst). What may not be handed out yet waits in
the queue. What is leased goes on. Of each group, --per-group are in play at a time, one if it is not given.

What is given replaces all limits that the queue has: one that is not given is taken away. --off takes all away.
Limits outlive purge, as a pause does.`,
		Example: `  sluice limit mails
  sluice limit mails --running 3 --rate 10/s --burst 5
  sluice limit mails --rate 100/m
  sluice limit bookings --per-group 4
  sluice limit mails --off`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			limits, change, err := o.read(cmd.Flags())
			if err != nil {
				return err
			}
			return a.limit(cmd.Context(), args[0], limits, change, o.dryRun)
		},
	}
	f := c.Flags()
	f.IntVar(&o.running, "running", 0, "how many tasks may be leased at a time")
	f.StringVar(&o.rate, "rate", "", "how many tasks may be handed out in a time: 10/s, 100/m, 5/h, 3/d, 10/500ms")
	f.IntVar(&o.burst, "burst", 0, "with --rate: how many at once, if none was for a while (1 if not given)")
	f.IntVar(&o.perGroup, "per-group", 0, "how many tasks of a group may be in play at a time (1 if not given)")
	f.BoolVar(&o.off, "off", false, "take all limits away")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be done, and do nothing")
	return c
}

// read returns the limits that the flags say, and whether they are to be set.
func (o limitOptions) read(f *pflag.FlagSet) (limits sluice.Limits, change bool, err error) {
	text := func(name string) string {
		if !f.Changed(name) {
			return ""
		}
		change = true
		return cmp.Or(f.Lookup(name).Value.String(), " ") // one that is empty is wrong, and not as if it were not there
	}
	running, rate, burst, perGroup := text("running"), text("rate"), text("burst"), text("per-group")
	switch {
	case change && o.off:
		return limits, true, usagef("--off takes all limits away: it goes without --running, --rate, --burst and --per-group")
	case o.off:
		return limits, true, nil
	case !change && o.dryRun:
		return limits, false, usagef("--dry-run is for limits that are set or taken away")
	case !change:
		return limits, false, nil
	}
	if limits, err = inspect.ReadLimits(running, rate, burst, perGroup); err != nil {
		return limits, true, usagef("%w\nlimit --off takes limits away, pause has nothing handed out", err)
	}
	return limits, true, nil
}

// limit shows a queue's limits, or sets them.
func (a *app) limit(ctx context.Context, argument string, limits sluice.Limits, change, dryRun bool) error {
	q, name, err := a.open(ctx, argument)
	if err != nil {
		return err
	}
	s, err := q.Stats(ctx)
	if err != nil {
		return err
	}
	was := cmp.Or(inspect.LimitsNote(sluice.Stats{Limits: s.Limits}), "no limits")
	if change && !dryRun {
		if err := q.SetLimits(ctx, limits); err != nil {
			return err
		}
	}
	var before *report.Limits
	if change {
		before = report.LimitsOf(s)
		s.Limits = limits
	}
	if a.json {
		j := limitJSON{Before: before, Changed: change, DryRun: dryRun, Limits: report.LimitsOf(s), Leased: s.Leased}
		j.Queue, j.QueueBase64 = report.Bytes(name)
		return report.Print(a.out, j)
	}
	said := cmp.Or(inspect.LimitsNote(s), "no limits")
	if dryRun {
		said = "would have " + cmp.Or(inspect.LimitsNote(sluice.Stats{Limits: limits}), "no limits")
	}
	if change {
		said += "; before: " + was
	}
	_, err = fmt.Fprintf(a.out, "%s: %s (%s)\n", show(name), said, statsText(s))
	return err
}
