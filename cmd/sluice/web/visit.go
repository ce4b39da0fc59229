package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

var (
	errNoPage   = errors.New("there is no such page")
	errReadOnly = errors.New("this page is read-only: its server was started without the right to write")
	errForeign  = errors.New("this form was not sent from a page of this server")
	errExpired  = errors.New("this form is too old: open the page again, and send it from there")
	errForm     = errors.New("this form can not be read")
	errCut      = errors.New("the page ends in the middle: its viewer has left")
)

// visit is a request to a page.
type visit struct {
	*page
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context
	age age // of what is shown
}

// notice is what a page says at its top after a change.
type notice struct {
	Text string
	Bad  bool // it has failed, or may have
}

// view is what a page is rendered from.
type view struct {
	*page
	Title, Tab string
	Nonce      string
	Live       bool   // what it shows changes by itself: not a question or an error, whose URL may be a form's
	Token      string // of forms; empty if the visitor may not write
	Notice     *notice
	Now        time.Time     // by Redis's clock
	Age        time.Duration // of the oldest figure that is shown, if it is old
	Data       any
}

// old is how old figures may be that are shown as if they were new.
const old = 5 * time.Second

func (v view) Write() bool                    { return v.options.Write }
func (v view) Home() string                   { return v.options.Prefix + "/" }
func (v view) Locks() string                  { return v.options.Prefix + "/locks" }
func (v view) Asset(name string) string       { return v.options.Prefix + "/assets/" + v.files[name].name }
func (v view) QueueURL(q string) string       { return v.queueURL(q) }
func (v view) TasksURL(q string) string       { return v.tasksURL(q) }
func (v view) TaskURL(q, id string) string    { return v.taskURL(q, id) }
func (v view) GroupURL(q, g string) string    { return v.groupURL(q, g) }
func (v view) LockURL(l string) string        { return v.lockURL(l) }
func (v view) Until(t time.Time) string       { return span(t.Sub(v.Now)) }
func (v view) IsPast(t time.Time) bool        { return !t.After(v.Now) }
func (v view) Soon(d time.Duration) time.Time { return v.Now.Add(d) }

// With returns the view with the data of a part of the page.
func (v view) With(data any) view {
	v.Data = data
	return v
}

// newVisit returns the visit that a request is. The function that it returns ends its context.
func (p *page) newVisit(w http.ResponseWriter, r *http.Request) (*visit, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	v := &visit{page: p, w: w, r: r}
	v.ctx = withAge(ctx, &v.age)
	return v, cancel
}

// show makes a handler of a function that shows a page.
func (p *page) show(f func(*visit) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, cancel := p.newVisit(w, r)
		defer cancel()
		if err := f(v); err != nil {
			v.fail(err)
		}
	}
}

// change makes a handler of a function that changes something and ends with a redirection or a
// page.
func (p *page) change(f func(*visit) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, cancel := p.newVisit(w, r)
		defer cancel()
		err := p.checkForm(w, r)
		if err == nil {
			err = f(v)
		}
		if err != nil {
			v.fail(err)
		}
	}
}

// queue, task and lock return the names in the request's path.
func (v *visit) queue() string { return fromSegment(v.r.PathValue("queue")) }
func (v *visit) task() string  { return fromSegment(v.r.PathValue("task")) }
func (v *visit) lock() string  { return fromSegment(v.r.PathValue("lock")) }

// isLive reports whether the page's script asks, which looks only at what is marked with data-live.
func (v *visit) isLive() bool { return v.r.Header.Get("Sluice-Live") != "" }

// now returns the time by Redis's clock, as far as it is known.
func (v *visit) now() time.Time { return v.page.now(v.ctx) }

func (p *page) now(ctx context.Context) time.Time {
	difference, _ := p.clock.get(withAge(ctx, nil))
	return time.Now().Add(difference)
}

// clockDifference asks Redis for its time. Without the right to ask, the clocks count as equal.
func (p *page) clockDifference(ctx context.Context) (time.Duration, error) {
	before := time.Now()
	there, err := p.rdb.Time(ctx).Result()
	if err != nil {
		return 0, nil //nolint:nilerror // the page shows times by its own clock then
	}
	return there.Sub(before.Add(time.Since(before) / 2)), nil
}

// render writes a page.
func (v *visit) render(status int, name, title, tab string, data any) error {
	view := view{page: v.page, Title: title, Tab: tab, Nonce: random(), Live: name != "confirm" && name != "error", Now: v.now(), Data: data}
	if now := time.Now(); now.Sub(v.age.of(now)) > old {
		view.Age = now.Sub(v.age.of(now))
	}
	if v.options.Write {
		view.Token = v.formToken(v.w, v.r)
	}
	if !v.isLive() {
		view.Notice = v.takeNotice()
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.Header().Set("Content-Security-Policy", policy(view.Nonce))
	body, end := v.body()
	v.w.WriteHeader(status)
	// Not by way of a buffer: pages have up to some megabytes, and many viewers may be slow to read
	// theirs.
	err := v.views[name].Execute(body, view)
	if err = errors.Join(err, end()); err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	return nil
}

// failure is what the error page says.
type failure struct{ What, Detail, Advice string }

// fail shows an error. The errors of the library hold no token, payload or password.
func (v *visit) fail(err error) {
	status, f := explain(err)
	if errors.Is(err, errCut) || v.render(status, "error", f.What, "", f) != nil {
		panic(http.ErrAbortHandler)
	}
}

// why is what an error says.
func why(err error) string { return shown(strings.TrimPrefix(err.Error(), "sluice: ")) }

// explain says what an error means to a visitor.
func explain(err error) (int, failure) {
	detail := why(err)
	switch {
	case errors.Is(err, errNoPage):
		return http.StatusNotFound, failure{What: "There is no such page"}
	case errors.Is(err, sluice.ErrNotFound):
		return http.StatusNotFound, failure{"There is no such task", "", "It was finished, cancelled or dropped meanwhile, or never had this ID. One that is finished leaves nothing behind, unless the queue remembers it (WithRetention)."}
	case errors.Is(err, errReadOnly), errors.Is(err, errForeign), errors.Is(err, errExpired):
		return http.StatusForbidden, failure{"Nothing was changed", detail, ""}
	case errors.Is(err, sluice.ErrInvalid), errors.Is(err, errForm):
		return http.StatusBadRequest, failure{"That can not be", detail, ""}
	case errors.Is(err, sluice.ErrUnknown):
		return http.StatusBadGateway, failure{"Redis's answer was lost", detail, "It may have been done or not. Look before you try again."}
	case errors.Is(err, sluice.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.As(err, new(net.Error)):
		return http.StatusServiceUnavailable, failure{"Redis does not answer", detail, "Nothing was changed. Trying again later may help."}
	}
	return http.StatusInternalServerError, failure{"That has failed", detail, ""}
}

// noticeCookie is the cookie that brings a notice to the page that is shown next.
const noticeCookie = "sluice_notice"

// done sends the visitor to a page that shows what became of a change.
func (v *visit) done(url string, n notice) error {
	n.Text = cut(n.Text, 600)
	content, err := json.Marshal(n)
	if err != nil {
		return err
	}
	v.setCookie(v.w, v.r, noticeCookie, base64.RawURLEncoding.EncodeToString(content), 60)
	http.Redirect(v.w, v.r, url, http.StatusSeeOther)
	return nil
}

// takeNotice returns the notice that the visitor has brought, and takes it away.
func (v *visit) takeNotice() *notice {
	cookie, err := v.r.Cookie(noticeCookie)
	if err != nil {
		return nil
	}
	v.setCookie(v.w, v.r, noticeCookie, "", -1)
	content, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	var n notice
	if err != nil || json.Unmarshal(content, &n) != nil || n.Text == "" {
		return nil
	}
	return &n
}

// cut shortens a text to n characters.
func cut(s string, n int) string {
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n]) + "…"
	}
	return s
}

// audit tells the logger of a change.
func (v *visit) audit(what string, args ...any) {
	if v.options.Logger != nil {
		if v.options.User != nil {
			args = append(args, "user", v.options.User(v.r))
		}
		v.options.Logger.InfoContext(v.ctx, "sluice: page: "+what, append(args, "remote", v.r.RemoteAddr)...)
	}
}
