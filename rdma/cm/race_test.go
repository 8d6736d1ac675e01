//go:build race

package cm

const underRaceDetector = true
