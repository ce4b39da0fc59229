package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// enqueueJSON is what enqueue did, in JSON.
type enqueueJSON struct {
	Action      string `json:"action"`
	Queue       string `json:"queue"`
	QueueBase64 string `json:"queue_base64,omitempty"`
	ID          string `json:"id"`
	IDBase64    string `json:"id_base64,omitempty"`
	Outcome     string `json:"outcome"`
}

func (a *app) enqueueCommand() *cobra.Command {
	var t sluice.Task
	var at, payload, file string
	var header []string
	c := &cobra.Command{
		Use: "enqueue QUEUE [ID]", Short: "Put one task into a queue",
		Long: `Put one task into a queue: for a try, or in place of a producer that is down. Without an ID it gets a new one, which is printed. A task of that
ID that is there stays as it is, in whatever state but dead: that is exit code 4.`,
		Example: `  sluice enqueue orders order-17 --kind cancel --payload '{"order":17}' --delay 15m
  sluice enqueue orders --payload-file - < body.json`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if t.ID = sluice.NewID(); len(args) == 2 {
				if t.ID, err = a.argument(args[1]); err != nil {
					return err
				}
			}
			if at != "" {
				if t.At, err = time.Parse(time.RFC3339, at); err != nil {
					return usagef("--at is a time such as 2026-01-31T12:00:00Z")
				}
			}
			if payload != "" && file != "" {
				return usagef("either --payload or --payload-file has the payload")
			}
			if t.Payload = []byte(payload); file != "" {
				if t.Payload, err = a.readAll(file); err != nil {
					return err
				}
			}
			for _, pair := range header {
				key, value, found := strings.Cut(pair, "=")
				if !found {
					return usagef("--header is KEY=VALUE")
				}
				if t.Header == nil {
					t.Header = map[string]string{}
				}
				t.Header[key] = value
			}
			return a.enqueue(cmd.Context(), args[0], t)
		},
	}
	f := c.Flags()
	f.StringVar(&t.Kind, "kind", "", "the kind, by which a Mux chooses the handler")
	f.StringVar(&payload, "payload", "", "the payload, which others can see among the processes")
	f.StringVar(&file, "payload-file", "", "a file with the payload, - for standard input")
	f.StringArrayVar(&header, "header", nil, "a pair of the header, KEY=VALUE; may be given several times")
	f.DurationVar(&t.Delay, "delay", 0, "when it is due, from now: 90s, 10m, 24h")
	f.StringVar(&at, "at", "", "when it is due: a time such as 2026-01-31T12:00:00Z")
	f.StringVar(&t.Group, "group", "", "its group")
	return c
}

// readAll reads a file, or standard input for "-".
func (a *app) readAll(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(a.in)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, usageError{err}
	}
	return data, nil
}

func (a *app) enqueue(ctx context.Context, queue string, t sluice.Task) error {
	q, name, err := a.open(ctx, queue)
	if err != nil {
		return err
	}
	t.Duplicates = sluice.DuplicatesKeep
	outcome, err := q.Enqueue(ctx, t)
	if err != nil {
		return fmt.Errorf("task %s: %w", show(t.ID), err) // its ID may be a new one, to look for
	}
	if a.json {
		j := enqueueJSON{Action: "enqueue", Outcome: outcome.String()}
		j.Queue, j.QueueBase64 = report.Bytes(name)
		j.ID, j.IDBase64 = report.Bytes(t.ID)
		if err := report.Print(a.out, j); err != nil {
			return err
		}
	} else {
		_, _ = fmt.Fprintf(a.out, "%s: %s\n", show(t.ID), outcome)
	}
	if outcome != sluice.OutcomeAdded {
		return fmt.Errorf("%w: there is a task %s", errNotConfirmed, show(t.ID))
	}
	return nil
}
