// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCutOff checks that a page that ends before the section after its tables is rejected, since the tables may be
// incomplete. The rest of the page does not matter.
func TestCutOff(t *testing.T) {
	for name, c := range map[string]struct {
		page string
		end  string // title of the section after the tables
		read func(text []byte) (any, error)
	}{
		"ibv_post_send.3": {page, ".SH ", func(text []byte) (any, error) {
			table, flags, err := ReadPostSend("p.3", text)
			return fmt.Sprint(table, flags), err
		}},
		"ibv_wr_post.3": {wrPostPage(), ".S", func(text []byte) (any, error) {
			builders, flags, err := ReadWRPost("p.3", text)
			return fmt.Sprint(builders, flags), err
		}},
		"ibv_wr_post.3.md": {wrPostMarkdown(), "#", func(text []byte) (any, error) {
			builders, flags, err := ReadWRPost("p.3.md", text)
			return fmt.Sprint(builders, flags), err
		}},
		"ibv_modify_qp.3": {modifyQPPage(), ".SH", func(text []byte) (any, error) { return ReadModifyQP("p.3", text) }},
	} {
		t.Run(name, func(t *testing.T) {
			complete, err := c.read([]byte(c.page))
			require.NoError(t, err)
			reads := 0
			for n := range len(c.page) {
				cut, err := c.read([]byte(c.page[:n]))
				if err != nil {
					assert.Zero(t, reads, "%d bytes are rejected, but fewer were accepted", n)
					assert.ErrorContains(t, err, "p.3")
					continue
				}
				if reads++; reads == 1 {
					assert.GreaterOrEqual(t, n, strings.LastIndex(c.page, c.end)+len(c.end))
				}
				assert.Equal(t, complete, cut, "%d of %d bytes", n, len(c.page))
			}
			assert.Positive(t, reads)
		})
	}
}
