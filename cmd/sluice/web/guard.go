package web

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

const (
	// formCookie is the cookie from which the token in forms is made.
	formCookie = "sluice_form"
	// mostForm is how many bytes a form may have: those of a page of the longest IDs.
	mostForm = 1 << 20
)

// ServeHTTP guards what all answers have in common: where they may be shown, and who may ask.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers send no Origin with forms
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if !p.isHost(r.Host) {
		http.Error(w, "This server is not asked by this name. Use its IP address, or name the host in Options.Hosts (sluice serve --host).", http.StatusMisdirectedRequest)
		return
	}
	switch path := r.URL.EscapedPath(); {
	case path == p.options.Prefix:
		http.Redirect(w, r, p.options.Prefix+"/", http.StatusPermanentRedirect)
	case !strings.HasPrefix(path, p.options.Prefix+"/") || isUnclean(path):
		http.NotFound(w, r)
	default:
		http.StripPrefix(p.options.Prefix, p.mux).ServeHTTP(w, r)
	}
}

// isUnclean reports whether a path has segments that the mux would redirect away, to outside of the
// prefix.
func isUnclean(path string) bool {
	return strings.Contains(path, "//") || strings.Contains(path+"/", "/./") || strings.Contains(path+"/", "/../")
}

// policy is the Content-Security-Policy of a page: its own script, style and icon, and nothing
// else.
func policy(nonce string) string {
	return "default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" + nonce + "'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
}

// isHost reports whether the Host of a request is one of this server. An IP address is: a foreign
// site can have only names resolved to it.
func (p *page) isHost(host string) bool {
	name := hostname(host)
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" {
		return true
	}
	return name != "" && (slices.Contains(p.options.Hosts, "*") || p.isNamed(name))
}

// isNamed reports whether the options name a host.
func (p *page) isNamed(name string) bool {
	return slices.ContainsFunc(p.options.Hosts, func(h string) bool { return hostname(h) == name && name != "*" && name != "" })
}

// hostname returns a host without its port, brackets and last dot.
func hostname(host string) string {
	u := url.URL{Host: host}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}

// isFromHere reports whether a browser says that a form was on a page of this server.
func (p *page) isFromHere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	origin := r.Header.Get("Origin")
	if site != "" && site != "same-origin" || site == "" && origin == "" {
		return false
	}
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	// A proxy may have changed the Host.
	return strings.EqualFold(u.Host, r.Host) || p.isNamed(hostname(u.Host))
}

// checkForm says what is wrong with a form: where it comes from, or its token.
func (p *page) checkForm(w http.ResponseWriter, r *http.Request) error {
	if !p.options.Write {
		return errReadOnly
	}
	if !p.isFromHere(r) {
		return errForeign
	}
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	if err := r.ParseForm(); err != nil {
		return errForm
	}
	cookie, err := r.Cookie(formCookie)
	if err != nil || cookie.Value == "" || subtle.ConstantTimeCompare([]byte(r.PostForm.Get("token")), []byte(token(cookie.Value))) != 1 {
		return errExpired
	}
	return nil
}

// token returns what stands in the forms of the visitor who has this cookie. A foreign site can
// make a browser send the cookie at worst; it can not read it, nor a page.
func token(cookie string) string {
	sum := sha256.Sum256([]byte("sluice form " + cookie))
	return hex.EncodeToString(sum[:])
}

// formToken returns the token for the forms of a page. It sets the cookie if the visitor has none.
func (p *page) formToken(w http.ResponseWriter, r *http.Request) string {
	if cookie, err := r.Cookie(formCookie); err == nil && len(cookie.Value) == 2*sha256.Size {
		return token(cookie.Value)
	}
	secret := random()
	p.setCookie(w, r, formCookie, secret, 0)
	return token(secret)
}

// setCookie sets a cookie that only this page gets, and only from itself.
func (p *page) setCookie(w http.ResponseWriter, r *http.Request, name, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: name, Value: value, MaxAge: maxAge, Path: p.options.Prefix + "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
}

// random returns 32 random bytes, in hex.
func random() string {
	var b [sha256.Size]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
