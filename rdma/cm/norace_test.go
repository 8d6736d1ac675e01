//go:build !race

package cm

const underRaceDetector = false
