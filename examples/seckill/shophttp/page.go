package shophttp

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

//go:embed web
var files embed.FS

var views = template.Must(template.New("").Funcs(template.FuncMap{"round": round, "count": count, "add": func(a, b float64) float64 { return a + b }}).
	ParseFS(files, "web/page.html", "web/picture.svg"))

// Page shows a sale in a browser, while it runs and when it is over. A nil Page shows nothing.
type Page struct {
	url string

	mu   sync.Mutex // guards sale
	sale Result
}

// OpenPage serves a page on an address until ctx ends.
func OpenPage(ctx context.Context, addr string) (*Page, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &Page{url: "http://" + listener.Addr().String() + "/"}
	server := &http.Server{Handler: p.handler(), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }() // ended by Close
	return p, nil
}

// URL returns where the page is.
func (p *Page) URL() string { return p.url }

func (p *Page) show(r Result) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sale = r
}

func (p *Page) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		r := p.sale
		p.mu.Unlock()
		write(w, "text/html; charset=utf-8", "page.html", viewOf(r))
	})
	for name, kind := range map[string]string{"page.css": "text/css", "chart.css": "text/css", "page.js": "text/javascript"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			protect(w, kind+"; charset=utf-8")
			http.ServeFileFS(w, r, files, "web/"+name)
		})
	}
	return mux
}

// protect lets a page have its own script and style, and nothing else.
func protect(w http.ResponseWriter, kind string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
}

func write(w http.ResponseWriter, kind, name string, v view) {
	var text bytes.Buffer
	if err := views.ExecuteTemplate(&text, name, v); err != nil {
		http.Error(w, "the page could not be made", http.StatusInternalServerError)
		return
	}
	protect(w, kind)
	_, _ = text.WriteTo(w)
}

// SavePicture draws the sale into an SVG file.
func (r Result) SavePicture(file string) error {
	v := viewOf(r)
	style, err := files.ReadFile("web/chart.css")
	if err != nil {
		return err
	}
	v.Style = template.CSS(style)
	var text bytes.Buffer
	if err := views.ExecuteTemplate(&text, "picture.svg", v); err != nil {
		return err
	}
	return os.WriteFile(file, text.Bytes(), 0o666)
}

// view is what the templates show.
type view struct {
	Result
	Now    Sample
	Panels []panel
	Marks  []mark
	Axis   []mark
	Style  template.CSS
	Width  float64
	Height float64
}

// round formats a time with two or three digits.
func round(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
}

// count formats a number with commas.
func count(n any) string {
	digits := fmt.Sprint(n)
	if f, ok := n.(float64); ok {
		digits = fmt.Sprintf("%.0f", f)
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
