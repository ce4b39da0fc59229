package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

func (a *app) getCommand() *cobra.Command {
	var payload bool
	c := &cobra.Command{
		Use: "get QUEUE ID", Aliases: []string{"inspect"}, Short: "Show one task",
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.get(cmd.Context(), args, payload) },
	}
	c.Flags().BoolVar(&payload, "payload", false, "show the payload, or the result of one that is done")
	return c
}

func (a *app) get(ctx context.Context, args []string, payload bool) error {
	id, err := a.argument(args[1])
	if err != nil {
		return err
	}
	q, _, err := a.open(ctx, args[0])
	if err != nil {
		return err
	}
	o := detail{payload: payload, header: true}
	e, err := q.Get(ctx, id, o.options("")...)
	if err != nil {
		return err
	}
	staff, err := crewOf(ctx, q, e)
	if err != nil {
		return err
	}
	if a.json {
		return report.Print(a.out, toTaskJSON(e, o, staff))
	}
	a.printTask(e, staff, payload, a.now(ctx))
	return nil
}

// printTask prints one task, a line for each thing.
func (a *app) printTask(e sluice.TaskInfo, staff crew, payload bool, now time.Time) {
	line := func(what, value string) { _, _ = fmt.Fprintf(a.out, "%-11s %s\n", what, value) }
	line("id", show(e.ID))
	if e.Kind != "" {
		line("kind", show(e.Kind))
	}
	line("state", e.State.String())
	line("attempts", strconv.Itoa(e.Attempt))
	if e.Take.Units > 0 {
		line("holds", fmt.Sprintf("%d of %s", e.Take.Units, show(e.Take.Item)))
	}
	if e.Group != "" {
		line("group", show(e.Group))
	}
	switch at := inspect.TimeOf(e); e.State {
	case sluice.StateLeased:
		line("leased", moment(e.LeasedSince)+", for "+spanSince(e.LeasedSince, now))
		line("by", staff.holder(e))
		line("lease ends", moment(at)+", in "+span(max(0, at.Sub(now))))
	case sluice.StateDead:
		line("died", ago(at, now))
		line("reason", show(e.Reason))
	case sluice.StateDue:
		line("due", moment(at)+", for "+span(max(0, now.Sub(at))))
		if !e.LeasedSince.IsZero() {
			line("last leased", moment(e.LeasedSince)+", by "+staff.holder(e)+" until the lease ended")
		}
	case sluice.StateDone:
		line("done", ago(at, now))
		line("result", resultOf(e, payload))
		return
	default:
		line("due", moment(at)+", in "+span(max(0, at.Sub(now))))
	}
	if !e.FailedAt.IsZero() {
		line("failed", ago(e.FailedAt, now))
		line("last error", lastError(e))
	}
	if len(e.Header) > 0 {
		line("header", headerText(e.Header))
	}
	switch {
	case payload:
		line("payload", cmp.Or(show(string(e.Payload)), `""`))
	case e.Omitted > 0:
		line("payload", inspect.Plural(int64(e.Omitted), "byte")+" with the header, shown with --payload")
	default:
		line("payload", inspect.Plural(int64(len(e.Payload)), "byte")+", shown with --payload")
	}
}

// resultOf prints the result of a task that is done, or how large it is.
func resultOf(e sluice.TaskInfo, payload bool) string {
	size := len(e.Result) + e.Omitted
	switch {
	case size == 0:
		return "none"
	case payload:
		return show(string(e.Result))
	}
	return inspect.Plural(int64(size), "byte") + ", shown with --payload"
}
