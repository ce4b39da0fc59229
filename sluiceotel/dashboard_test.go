package sluiceotel_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestExample_TwoProcesses runs the example: one process enqueues, another one works. Their spans
// are joined, and every name of a metric and of a label that the dashboard asks for is among those
// which the worker exports.
func TestExample_TwoProcesses(t *testing.T) {
	program := filepath.Join(t.TempDir(), "example")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./example").CombinedOutput()
	require.NoError(t, err, string(out))
	server := redistest.Start(t)
	addr := server.Addr
	orders, err := sluice.NewQueue(server.Client(t), "orders") // which the example works on
	require.NoError(t, err)
	require.NoError(t, orders.SetLimits(t.Context(), sluice.Limits{Running: 100, Rate: 1000, Burst: 100}))

	require.NoError(t, orders.SetStock(t.Context(), "phone", 10))

	sell := exec.CommandContext(t.Context(), program, "sell", "-redis", addr, "order-1", "order-refused")
	var sold bytes.Buffer
	sell.Stdout, sell.Stderr = &sold, os.Stderr
	require.NoError(t, sell.Run())
	work := exec.CommandContext(t.Context(), program, "work", "-redis", addr, "-metrics", "127.0.0.1:0")
	var worked bytes.Buffer
	work.Stdout = &worked
	stderr, err := work.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, work.Start())
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(t, err)
	_, url, found := strings.Cut(strings.TrimSpace(line), "metrics at ")
	require.True(t, found, line)
	page := awaitPage(t, url, `sluice_task_disposition="buried"`, `sluice_task_disposition="done"} 2`, "sluice_lock_hold_duration_seconds_count")
	require.NoError(t, work.Process.Signal(os.Interrupt))
	require.NoError(t, work.Wait())

	sent, processed := spans(t, &sold, "send orders"), spans(t, &worked, "process orders")
	receipts := spans(t, &worked, "send orders")
	require.Len(t, sent, 2)
	require.Len(t, receipts, 1)
	require.Len(t, processed, 3)
	producers := map[string]span{}
	for _, s := range append(sent, receipts...) {
		producers[s.SpanContext.TraceID+s.SpanContext.SpanID] = s
	}
	for _, p := range processed {
		require.Len(t, p.Links, 1)
		link := p.Links[0].SpanContext
		require.Contains(t, producers, link.TraceID+link.SpanID)
		require.NotEqual(t, link.TraceID, p.SpanContext.TraceID)
		t.Logf("%s %s, linked to send orders %s", p.Name, p.SpanContext.TraceID, link.TraceID)
		delete(producers, link.TraceID+link.SpanID)
	}
	require.Empty(t, producers, "each task was linked to the span that has sent it")
	checkDashboard(t, page)
}

// span is what the example prints of a span.
type span struct {
	Name        string
	SpanContext struct{ TraceID, SpanID string }
	Links       []struct {
		SpanContext struct{ TraceID, SpanID string }
	}
}

// spans returns those of a name.
func spans(t *testing.T, printed *bytes.Buffer, name string) (all []span) {
	t.Helper()
	for decoder := json.NewDecoder(bytes.NewReader(printed.Bytes())); decoder.More(); {
		var s span
		require.NoError(t, decoder.Decode(&s))
		if s.Name == name {
			all = append(all, s)
		}
	}
	return all
}

// awaitPage scrapes metrics until they contain all of these texts.
func awaitPage(t *testing.T, url string, texts ...string) (page string) {
	t.Helper()
	require.Eventually(t, func() bool {
		reply, err := http.Get(url) //nolint:gosec,noctx // the worker of this test
		if err != nil {
			return false
		}
		defer func() { _ = reply.Body.Close() }()
		body, err := io.ReadAll(reply.Body)
		page = string(body)
		for _, text := range texts {
			if err != nil || !strings.Contains(page, text) {
				return false
			}
		}
		return true
	}, 20*time.Second, 20*time.Millisecond)
	return page
}

var (
	metricName = regexp.MustCompile(`\b(?:sluice|messaging)_[a-z_]+`)
	grouped    = regexp.MustCompile(`by \(([^)]*)\)`)
	series     = regexp.MustCompile(`(?m)^([a-z_]+)(\{[^}]*\})? `)
)

// checkDashboard checks that the page has each metric and label of the dashboard's queries. What
// the run of the example has not caused is allowed by name.
func checkDashboard(t *testing.T, page string) {
	t.Helper()
	exported := map[string]string{} // labels by name
	for _, s := range series.FindAllStringSubmatch(page, -1) {
		exported[s[1]] += s[2]
	}
	var labels strings.Builder
	for _, l := range exported {
		labels.WriteString(l)
	}
	file, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(file, &dashboard))
	queries := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries++
			if strings.Contains(target.Expr, "(sluice_queue_") { // which each process that observes the queue reports alike
				require.True(t, strings.HasPrefix(target.Expr, "max by "), target.Expr)
			}
			by := grouped.FindStringSubmatch(target.Expr)
			isLabel := map[string]bool{"messaging_destination_name": true}
			for _, label := range strings.Split(strings.Join(by[min(1, len(by)):], ""), ", ") {
				isLabel[label] = true
				if label != "" && label != "le" && label != "error_type" { // which needs an Enqueue that fails
					require.True(t, strings.Contains(labels.String(), label+`="`), "%s: no label %s", panel.Title, label)
				}
			}
			for _, name := range metricName.FindAllString(target.Expr, -1) {
				if !isLabel[name] && name != "sluice_lock_lost_total" && name != "sluice_lock_wait_failures_total" { // which need a lock that is lost, or not free
					_, found := exported[name]
					require.True(t, found, "%s: no metric %s", panel.Title, name)
				}
			}
		}
	}
	require.Greater(t, queries, 10)
}
