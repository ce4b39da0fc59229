package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

const (
	// completeFor is how long a shell waits for what could stand there.
	completeFor = 2 * time.Second
	// mostOffered is how many names and IDs are offered.
	mostOffered = 100
)

// harmless are the names that are offered. Bash expands what it is offered: a queue that is
// called $(…) would be run as a command when the operator presses the tabulator.
var harmless = regexp.MustCompile(`^[\pL\pN_.:@%+,=/][\pL\pN_.:@%+,=/-]*$`)

// completeAll has the shell complete queues, IDs and states of all commands whose usage has them.
func (a *app) completeAll(root *cobra.Command) {
	for _, c := range root.Commands() {
		_, arguments, _ := strings.Cut(c.Use, " ")
		arguments = strings.Trim(arguments, "[")
		if strings.HasPrefix(arguments, "QUEUE") {
			c.ValidArgsFunction = a.completeQueue(strings.Contains(arguments, "ID"))
		}
		if c.Flags().Lookup("state") != nil {
			_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states(), cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

// states are the names of the states, in order.
func states() []string {
	var names []string
	for name := range listed {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// completeQueue returns what completes the name of a queue, and behind it IDs of its tasks.
func (a *app) completeQueue(withIDs bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeFor)
		defer cancel()
		var found []string
		err := a.readSettings(cmd)
		switch {
		case err != nil:
		case len(args) == 0:
			found, err = a.queueNames(ctx)
		case withIDs:
			found, err = a.someIDs(ctx, args[0], begun)
		}
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var offered []string
		for _, name := range found {
			if strings.HasPrefix(name, begun) && harmless.MatchString(name) && len(offered) < mostOffered {
				offered = append(offered, name)
			}
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) queueNames(ctx context.Context) ([]string, error) {
	rdb, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	names, _ := inspect.Queues(ctx, rdb, a.options) // those that were found in time
	return names, nil
}

// someIDs returns IDs of the first tasks in each state.
func (a *app) someIDs(ctx context.Context, queue, begun string) (ids []string, err error) {
	rdb, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	q, err := inspect.Open(rdb, queue, a.options)
	if err != nil {
		return nil, err
	}
	for _, state := range []sluice.State{sluice.StateLeased, sluice.StateDead, sluice.StateDue, sluice.StateScheduled, sluice.StateWaiting} {
		tasks, err := q.List(ctx, state, sluice.TaskInfo{}, pageSize, sluice.WithoutPayloads())
		if err != nil {
			return nil, err
		}
		for _, t := range tasks {
			if strings.HasPrefix(t.ID, begun) {
				ids = append(ids, t.ID)
			}
		}
	}
	return ids, nil
}
