package objects

import (
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
