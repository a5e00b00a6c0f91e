import testingModule from "./src/testing.js";

export const { recorder, recording, RecordingMiss } = testingModule;
