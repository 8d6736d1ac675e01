// SPDX-License-Identifier: BSD-2-Clause

package rules_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/recorded"
	"github.com/goverbs/goverbs/gen/rules"
)

var (
	enumLike = regexp.MustCompile(`(^|_)(state|mtu|rate|width|speed|link_layer|type|flags?|mask|opcode|status|selector|` +
		`caps?|event|level|mode|access|qpts|oflags)\d*(_ex)?$`)
	integer = regexp.MustCompile(`^(u?int(8|16|32|64)|byte|BE(16|32|64))$`)
)

// TestMembersNamedLikeEnums plans every package and checks that a member with the name of an enumeration, such as a
// state or flags, has an enumeration type, or a row with the reason why it is an integer.
func TestMembersNamedLikeEnums(t *testing.T) {
	inputs, err := recorded.Inputs()
	require.NoError(t, err)
	x, err := rules.DefaultExceptions()
	require.NoError(t, err)
	plans, _, err := rules.Plans(inputs, rules.All(), x)
	require.NoError(t, err)
	members, missing := 0, []string{}
	for _, plan := range plans {
		for _, rec := range plan.Records {
			see := func(c string, typ rules.GoType) {
				if !enumLike.MatchString(c) || len(typ.Dims) > 0 || typ.Pointers > 0 {
					return
				}
				members++
				if integer.MatchString(typ.Name) && x.Lookup(string(rules.Plain), rec.Path+"."+c) == nil &&
					(plan.Package.GOOS() == "linux" || x.Lookup(string(rules.Holds), rec.Path+"."+c) == nil) { // Linux's
					missing = append(missing, plan.Package.Name+": "+rec.Path+"."+c)
				}
			}
			for _, m := range rec.Variants[0].Members {
				see(m.C, m.Type)
			}
			for _, a := range rec.Access {
				see(a.C, a.Type)
			}
		}
	}
	assert.Empty(t, missing, "add holds or plain rows to gen/rules/exceptions.txt")
	assert.Greater(t, members, 300)
}
