// SPDX-License-Identifier: BSD-2-Clause

package grids

import (
	_ "embed"
	"html/template"
	"io"

	"github.com/goverbs/goverbs/gen/rules"
)

//go:embed tables.html.tmpl
var tablesTemplate string

var tablesPage = template.Must(template.New("tables").Funcs(template.FuncMap{"next": func(i int) int {
	return i +
		1
}}).Parse(tablesTemplate))

// HTML writes all tables as one self-contained page.
func HTML(w io.Writer, grids []*rules.Grid) error {
	var views []*gridView
	for _, g := range grids {
		views = append(views, viewGrid(g, true))
	}
	return tablesPage.Execute(w, views)
}
