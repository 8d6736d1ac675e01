// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"bytes"
	"fmt"
	"strings"
)

// Where returns the line of the model that declares a C name: "headers/models/65.0.json:123".
func (in Input) Where(c string) string {
	name := c
	for _, kind := range []string{"struct ", "union ", "enum "} {
		name = strings.TrimPrefix(name, kind)
	}
	tag, member, _ := strings.Cut(name, ".")
	for _, key := range []string{"tag", "name"} {
		for _, form := range []string{`"%s": "%s"`, `"%s":"%s"`} {
			i := bytes.Index(in.Text, fmt.Appendf(nil, form, key, tag))
			if i < 0 {
				continue
			}
			if member != "" {
				last := member[strings.LastIndexByte(member, '.')+1:]
				if j := bytes.Index(in.Text[i:], fmt.Appendf(nil, `"name":"%s"`, last)); j >= 0 {
					i += j
				}
			}
			return fmt.Sprintf("%s:%d", in.Path, 1+bytes.Count(in.Text[:i], []byte("\n")))
		}
	}
	return in.Path
}
