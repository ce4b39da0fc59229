package web

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// browser is a tab of a headless Chromium, and what it has complained of.
type browser struct {
	*testing.T
	ctx context.Context

	mu       sync.Mutex // guards what follows
	messages []string
	requests []string
}

// newBrowser starts a Chromium for one test. Without one the test is skipped or, if CI=true, fails.
func newBrowser(t *testing.T, width, height int) *browser {
	t.Helper()
	program := chromium(t)
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir())}
	for _, flag := range []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
		"disable-component-update", "disable-sync", "disable-dev-shm-usage", "hide-scrollbars",
	} {
		options = append(options, chromedp.Flag(flag, true))
	}
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	b := &browser{T: t, ctx: ctx}
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the browser's end, before its folder is removed
		cancel()
	})
	require.NoError(t, chromedp.Listen(ctx, b.listen))
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	b.resize(int64(width), int64(height))
	return b
}

// call sends a command to the tab.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) R {
	b.Helper()
	result, err := chromedp.Call(b.ctx, command, params)
	require.NoError(b, err)
	return result
}

// resize changes the size of the window.
func (b *browser) resize(width, height int64) {
	b.Helper()
	b.do(chromedp.EmulateViewport(width, height))
}

// scheme has pages shown dark or light.
func (b *browser) scheme(value string) {
	b.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}})
}

// chromium returns the path of the program.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("no Chromium on this machine (Debian: chromium)")
	}
	t.Skip("no Chromium on this machine: install it to run this test (Debian: chromium)")
	return ""
}

// listen notes what the browser complains of, and what it asks for.
func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded: // CSP violations and failed requests, too
		b.messages = append(b.messages, string(e.Entry.Level)+": "+e.Entry.Text+" "+e.Entry.URL)
	case *runtime.EventExceptionThrown:
		b.messages = append(b.messages, e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.messages = append(b.messages, "console."+string(e.Type))
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

// do carries actions out.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	require.NoError(b, chromedp.Do(ctx, actions...))
}

// withoutScript has pages run no script.
func (b *browser) withoutScript() {
	b.Helper()
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
}

// open opens a page.
func (b *browser) open(url string) {
	b.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitReady("main"))
}

// eval returns what an expression is on the page.
func eval[T any](b *browser, expression string) T {
	b.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoError(b, err, expression)
	return value
}

// eventually waits until an expression is true on the page.
func (b *browser) eventually(expression string) {
	b.Helper()
	require.Eventually(b, func() bool {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
		return err == nil && ok // while a page is being opened there is an error
	}, time.Minute, 50*time.Millisecond, expression)
}

// requireQuiet checks that the browser has complained of nothing, and has asked no other host.
func (b *browser) requireQuiet(host string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b, b.messages)
	require.NotEmpty(b, b.requests)
	for _, url := range b.requests {
		require.True(b, strings.HasPrefix(url, host+"/"), url)
	}
}
