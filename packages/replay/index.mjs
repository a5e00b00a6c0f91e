// One implementation for both module systems: two copies would be two registries of attached clients.
import replayModule from "./src/index.js";

export const {
  replay,
  observe,
  ReplayError,
  ReplayContractError,
  ReplayKillError,
  ReplayConfigError,
  ReplayFaultError,
  ReplayInactiveError,
  ReplayUnsupportedError,
  ReplayTimeoutError,
} = replayModule;
