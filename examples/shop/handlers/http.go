// Package handlers has the shop's routes.
package handlers

import (
	"context"
	_ "embed" // for the page
	"html/template"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sluice-go/sluice/examples/shop/sale"
)

// Shop is what the routes need of a sale.Shop.
type Shop interface {
	Buy(ctx context.Context, user string) (sale.Answer, error)
	Pay(ctx context.Context, order string) (state string, err error)
	Figures(ctx context.Context) (sale.Figures, error)
}

//go:embed page.html
var page string

// New returns the routes.
func New(s Shop) http.Handler {
	r := gin.New()
	r.Use(gin.Recovery())
	r.SetHTMLTemplate(template.Must(template.New("page").Parse(page)))
	r.POST("/buy", func(c *gin.Context) { buy(c, s) })
	r.POST("/pay", func(c *gin.Context) { pay(c, s) })
	r.GET("/", func(c *gin.Context) {
		if f, err := s.Figures(c.Request.Context()); err != nil {
			fail(c, err)
		} else {
			c.HTML(http.StatusOK, "page", f)
		}
	})
	return r
}

var statuses = map[string]int{
	sale.Accepted: http.StatusAccepted, sale.Have: http.StatusOK, sale.SoldOut: http.StatusConflict, sale.Closed: http.StatusServiceUnavailable,
}

// buy takes the user from the query; a real shop takes it from the session.
func buy(c *gin.Context, s Shop) {
	user := c.Query("user")
	if user == "" {
		c.JSON(http.StatusBadRequest, gin.H{"error": "no user"})
		return
	}
	answer, err := s.Buy(c.Request.Context(), user)
	if err != nil {
		fail(c, err)
		return
	}
	c.JSON(statuses[answer.Result], answer)
}

// pay stands for what the payment service calls. A state other than paid is a conflict: if it is
// accepted, ask again in a moment.
func pay(c *gin.Context, s Shop) {
	state, err := s.Pay(c.Request.Context(), c.Query("order"))
	switch {
	case err != nil:
		fail(c, err)
	case state != sale.Paid:
		c.JSON(http.StatusConflict, gin.H{"state": state})
	default:
		c.JSON(http.StatusOK, gin.H{"state": state})
	}
}

// fail hides the error from the buyer, who may ask again: each request is safe to repeat.
func fail(c *gin.Context, err error) {
	_ = c.Error(err) // for a middleware that logs
	c.JSON(http.StatusServiceUnavailable, gin.H{"error": "try again"})
}
