//go:build !race

package stub

const defaultRounds = enoughRounds
